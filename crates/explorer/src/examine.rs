//! All that the image of a crash must be fit for: the auditor finds nothing but what a crash may
//! leave, it mounts at once, the tree is one that history allows, fsck and the reclaimer leave no
//! leak, and everything can be used.

use crate::engine::{Census, Engine, LATER};
use crate::judge;
use crate::known;
use crate::op::Op;
use crate::run::Run;
use crate::scratch::{Device, Scratch};
use crate::states::{Crash, Moment};
use crate::tree::{Flaw, Tree, difference_of_snapshots};
use std::collections::HashMap;
use std::sync::Arc;
use vfs::Kind;

/// Trees that are kept of a run, at most.
const ALLOWED_MAX: usize = 256;

/// Judges the states of a run.
pub struct Examiner<'a> {
    run: &'a Run,
    /// Trees that history allows at a moment, by their address: most states have one of few
    /// ([`known`]).
    allowed: HashMap<(usize, Moment), Arc<Tree>>,
}

impl<'a> Examiner<'a> {
    /// For the states of this run.
    pub fn new(run: &'a Run) -> Examiner<'a> {
        Examiner {
            run,
            allowed: HashMap::new(),
        }
    }

    /// Judge a state; returns its tree. `used`: also whether it can be repaired and used.
    ///
    /// # Errors
    /// What is wrong.
    pub fn examine(
        &mut self,
        crash: &Crash<'_>,
        scratch: &mut Scratch,
        used: bool,
    ) -> Result<Arc<Tree>, Flaw> {
        let (run, engine) = (self.run, self.run.workload.engine);
        let (moment, overlay) = (crash.moment, crash.overlay);
        if run.is_being_made(moment) {
            let made = |device: &Device| made(run, device);
            return scratch.with(overlay, made).map(Arc::new);
        }
        if run.clean && is_unmounted(run, moment) {
            let is_clean = |device: &Device| engine.is_clean(device);
            if scratch.with(overlay, is_clean) != Ok(true) {
                return Err("unmounted, and not clean".into());
            }
        }
        if !used {
            let tree = known::sound(engine, scratch, overlay)?;
            self.allows(moment, &tree)?;
            return Ok(tree);
        }
        let use_it = |device: &Device| -> Result<Tree, Flaw> {
            engine.audit(device)?;
            let tree = engine.found(device)?;
            judge::crashed(run, moment, &tree)?;
            let sound = engine.audit(device);
            sound.map_err(|e| format!("once mounted: {e}"))?;
            repair(engine, device, &tree)?;
            use_up(engine, device)?;
            Ok(tree)
        };
        scratch.with(overlay, use_it).map(Arc::new)
    }

    /// Whether a crash at this moment may leave this tree.
    fn allows(&mut self, moment: Moment, tree: &Arc<Tree>) -> Result<(), Flaw> {
        let key = (Arc::as_ptr(tree).addr(), moment);
        if self.allowed.contains_key(&key) {
            return Ok(());
        }
        judge::crashed(self.run, moment, tree)?;
        if self.allowed.len() >= ALLOWED_MAX {
            self.allowed.clear();
        }
        self.allowed.insert(key, tree.clone());
        Ok(())
    }
}

/// A file system that was being made is refused, or it is complete: at worst one of its superblocks
/// is not there yet, which fsck repairs. Or the one from before is there, without a flaw.
fn made(run: &Run, device: &Device) -> Result<Tree, Flaw> {
    let (engine, made) = (run.workload.engine, &run.steps[0]);
    if engine.is_clean(device).is_err_and(|why| !why.is_empty()) {
        return Ok(made.durable.clone());
    }
    let half = |e| format!("half of a file system is there: {e}");
    let found = engine.found(device).map_err(half)?;
    engine.repair(device)?;
    engine.flawless(device).map_err(half)?;
    match made.between.iter().find(|old| same(&found, old).is_ok()) {
        Some(_) => Ok(found),
        None => same(&found, &made.durable).map_err(half).map(|()| found),
    }
}

/// Whether what a run unmounted is as it left it.
fn is_unmounted(run: &Run, moment: Moment) -> bool {
    moment.ended && moment.step + 1 == run.steps.len()
}

/// Whether a tree is another one, with its contents.
///
/// # Errors
/// Where they differ.
pub fn same(now: &Tree, before: &Tree) -> Result<(), Flaw> {
    match now.difference(before) {
        Some(difference) => Err(difference),
        None if now.contents != before.contents => Err("files hold other bytes".into()),
        None => difference_of_snapshots(&now.snapshots, &before.snapshots).map_or(Ok(()), Err),
    }
}

/// fsck leaves no leaks, exact counts, and the tree as it is.
fn repair(engine: &dyn Engine, device: &Device, tree: &Tree) -> Result<(), Flaw> {
    engine.repair(device)?;
    let flawless = engine.flawless(device);
    flawless.map_err(|e| format!("after fsck: {e}"))?;
    same(&engine.found(device)?, tree).map_err(|e| format!("fsck changed the tree: {e}"))
}

/// Something can be made in every directory, everything can be removed, and all space is free then.
fn use_up(engine: &dyn Engine, device: &Device) -> Result<(), Flaw> {
    let mut fs = engine.mount_at(device, LATER)?;
    let tree = fs.tree()?;
    let (dirs, mut all) = paths(&tree)?;
    for dir in &dirs {
        let path = join(dir, "fresh");
        let write = Op::Write {
            path: path.clone(),
            at: None,
            len: 5000,
            fill: 0xaa,
        };
        for op in [Op::Create(path.clone()), write] {
            match fs.run(&op) {
                Ok(()) => {}
                // A full image is one that can be used, too: everything can be removed.
                Err(e) if e.errno() == vfs::Errno::NOSPC => break,
                Err(e) => return Err(format!("using it, {op}: {e}")),
            }
        }
        if fs.id(&path).is_some() {
            all.push((path, false));
        }
    }
    let mut run = |op: Op| fs.run(&op).map_err(|e| format!("using it, {op}: {e}"));
    run(Op::Syncfs)?;
    tree.snapshots
        .into_keys()
        .try_for_each(|name| run(Op::DropSnapshot(name)))?;
    // What is deepest goes first.
    all.sort_by_key(|(path, _)| std::cmp::Reverse(path.matches('/').count()));
    for (path, is_dir) in all {
        run(if is_dir {
            Op::Rmdir(path)
        } else {
            Op::Unlink(path)
        })?;
    }
    run(Op::Syncfs)?;
    fs.unmount().map_err(|e| format!("unmount: {e}"))?;
    drop(fs);
    let left = engine.flawless(device);
    match left.map_err(|e| format!("after using it: {e}"))? {
        Census {
            inodes: 1,
            names: 0,
        } => Ok(()),
        left => Err(format!("after everything was removed there are {left:?}")),
    }
}

fn join(dir: &str, name: &str) -> String {
    match dir {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    }
}

/// The paths of all directories, the root's first; and of all names, with whether they are
/// directories.
type Paths = (Vec<String>, Vec<(String, bool)>);

fn paths(tree: &Tree) -> Result<Paths, Flaw> {
    let (mut dirs, mut all) = (vec![String::new()], vec![]);
    let mut at = vec![(tree.root, String::new())];
    while let Some((dir, path)) = at.pop() {
        for (name, child) in &tree.objects[&dir].names {
            let Ok(name) = std::str::from_utf8(name) else {
                return Err("a name that nobody gave".into());
            };
            let path = join(&path, name);
            let is_dir = tree.objects[child].kind == Kind::Dir;
            all.push((path.clone(), is_dir));
            if is_dir {
                dirs.push(path.clone());
                at.push((*child, path));
            }
        }
    }
    Ok((dirs, all))
}
