//! Extended attributes by which a mount is asked for what system calls do not offer. They are not
//! listed.

/// The extended attribute whose reading makes durable everything that was done before: what
/// syncfs(2) would do if the kernel passed it on. Any file of the mount has it. Not listed.
pub const SYNC_XATTR: &str = "tureen.sync";

/// The extended attribute that tells the status of the mount. Each of its files has it, since a
/// bind mount may have any of them for its root. Not listed; answered from the callback given to
/// [`mount()`](crate::mount()).
pub const STATUS_XATTR: &str = "tureen.status";

/// With a command behind it, the extended attribute whose reading runs that: see
/// [`Options::control`](crate::Options::control). Its value is the answer. Any file of the mount
/// has it, for root and for who serves the mount, with a buffer of at least 4096 bytes. Not listed.
pub const CONTROL_XATTR: &str = "tureen.control.";
