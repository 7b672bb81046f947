//! What a file system is, whatever holds it: the trait, its vocabulary, and all that POSIX decides
//! above an engine.
//!
//! From the bottom: an engine implements [`FileSystem`] on inodes. [`Vfs`] puts permissions,
//! ownership, ACLs and access times around it. [`Files`] adds paths and descriptors: an in-process
//! interface shaped like the system calls. [`Locks`] are the record locks and flocks of both.

mod access;
mod acl;
mod change;
mod clock;
mod cred;
mod error;
mod fs;
mod locks;
mod path;
mod place;
mod types;
mod vfs;

pub use access::Access;
pub use acl::{ACL_ACCESS, ACL_DEFAULT, Acl};
pub use change::{Change, XattrChange};
pub use clock::{Clock, ManualClock, SystemClock};
pub use cred::{Caps, Cred};
pub use error::*;
pub use fs::*;
pub use locks::*;
pub use path::*;
pub use place::*;
pub use types::*;
pub use vfs::{Atime, NewNodeRequest, SetAttrRequest, TimeOrNow, Vfs, VfsOptions};
