//! What the tests of this crate start from: the reference engine with the rules around it.
#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::Arc;

use model::{Model, Node};
use vfs::{
    Access, Atime, Context, Cred, Errno, FileSystem, Files, ManualClock, NewKind, NewNodeRequest,
    Result, SetAttrRequest, Time, Vfs, VfsOptions,
};

pub const OWNER: u32 = 1000;
pub const OTHER: u32 = 2000;

/// When tests begin.
pub const START: Time = Time(1_000_000_000_000_000_000);

pub struct Setup {
    pub vfs: Arc<Vfs<Model>>,
    pub clock: Arc<ManualClock>,
    pub root: Node,
    pub su: Cred,
}

pub fn setup() -> Setup {
    setup_with(Atime::Relative, false)
}

pub fn setup_with(atime: Atime, read_only: bool) -> Setup {
    let clock = Arc::new(ManualClock::new(START));
    let model = Model::on(clock.clone());
    let vfs = Vfs::new(
        model,
        VfsOptions {
            atime,
            clock: clock.clone(),
            read_only,
        },
    );
    let root = vfs.fs().root();
    Setup {
        vfs: Arc::new(vfs),
        clock,
        root,
        su: Cred::root(),
    }
}

impl Setup {
    /// Makes something with exactly these bits, owner and group.
    pub fn make(
        &self,
        dir: &Node,
        name: &str,
        kind: NewKind<'_>,
        who: (u32, u32),
        perm: u16,
    ) -> Node {
        let node = self
            .vfs
            .create(
                &self.su,
                dir,
                name.as_bytes(),
                &NewNodeRequest::new(kind, 0o777, 0),
            )
            .unwrap();
        self.own(&node, who);
        if !matches!(kind, NewKind::Symlink(_)) {
            self.chmod(&node, perm);
        }
        node
    }

    pub fn file(&self, dir: &Node, name: &str, who: (u32, u32), perm: u16) -> Node {
        self.make(dir, name, NewKind::File, who, perm)
    }

    pub fn dir(&self, dir: &Node, name: &str, who: (u32, u32), perm: u16) -> Node {
        self.make(dir, name, NewKind::Dir, who, perm)
    }

    pub fn chmod(&self, node: &Node, perm: u16) {
        let request = SetAttrRequest {
            perm: Some(perm),
            ..Default::default()
        };
        self.vfs.setattr(&self.su, node, &request).unwrap();
    }

    pub fn own(&self, node: &Node, (uid, gid): (u32, u32)) {
        let request = SetAttrRequest {
            uid: Some(uid),
            gid: Some(gid),
            ..Default::default()
        };
        self.vfs.setattr(&self.su, node, &request).unwrap();
    }

    pub fn perm(&self, node: &Node) -> u16 {
        self.vfs.getattr(node).perm
    }

    pub fn may(&self, cred: &Cred, node: &Node, want: Access) -> bool {
        match self.vfs.access(cred, node, want) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.errno(), Errno::ACCESS);
                false
            }
        }
    }

    pub fn files(&self) -> (Files<Model>, Context<Model>) {
        (
            Files::new(self.vfs.clone(), 1000),
            Context::new(&self.vfs, Cred::root()),
        )
    }
}

/// A user in their own group only.
pub fn user(uid: u32) -> Cred {
    Cred::new(uid, uid, &[])
}

#[track_caller]
pub fn fails<T>(result: Result<T>, errno: Errno) {
    match result {
        Ok(_) => panic!("succeeded, {errno} expected"),
        Err(error) => assert_eq!(error.errno(), errno),
    }
}
