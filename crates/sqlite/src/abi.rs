//! The interface of SQLite to a VFS, as its documentation has it (sqlite3.h and sqlite3ext.h):
//! layouts and numbers that SQLite keeps as they are. They are declared here, as an extension takes
//! its functions from the program that loads it, and links to no library. A test compares them with
//! the headers of a SQLite that is compiled.

use std::ffi::{c_char, c_int, c_void};

/// What an operation failed for, or `OK`.
pub type Code = c_int;

/// Result codes.
pub mod code {
    use super::Code;

    /// It worked.
    pub const OK: Code = 0;
    /// Something else holds a lock.
    pub const BUSY: Code = 5;
    /// There is no memory for it.
    pub const NOMEM: Code = 7;
    /// It cannot be written.
    pub const READONLY: Code = 8;
    /// The medium, or the memory, failed.
    pub const IOERR: Code = 10;
    /// What is on the medium is damaged.
    pub const CORRUPT: Code = 11;
    /// This is not known here.
    pub const NOTFOUND: Code = 12;
    /// There is no space.
    pub const FULL: Code = 13;
    /// It cannot be opened.
    pub const CANTOPEN: Code = 14;
    /// Misuse of the interface.
    pub const MISUSE: Code = 21;
    /// Reading failed.
    pub const IOERR_READ: Code = IOERR | 1 << 8;
    /// The end of the file came early; the rest of the buffer is zeros.
    pub const IOERR_SHORT_READ: Code = IOERR | 2 << 8;
    /// Writing failed.
    pub const IOERR_WRITE: Code = IOERR | 3 << 8;
    /// Making durable failed.
    pub const IOERR_FSYNC: Code = IOERR | 4 << 8;
    /// The file could not be cut off.
    pub const IOERR_TRUNCATE: Code = IOERR | 6 << 8;
    /// The file could not be removed.
    pub const IOERR_DELETE: Code = IOERR | 10 << 8;
    /// The file that is to be removed is not there.
    pub const IOERR_DELETE_NOENT: Code = IOERR | 23 << 8;
    /// An atomic write cannot begin.
    pub const IOERR_BEGIN_ATOMIC: Code = IOERR | 29 << 8;
    /// An extension stays loaded when its connection is closed.
    pub const OK_LOAD_PERMANENTLY: Code = OK | 1 << 8;
}

/// Flags of opening.
pub mod open {
    use std::ffi::c_int;

    /// For reading only.
    pub const READONLY: c_int = 0x1;
    /// It is made if it is not there.
    pub const CREATE: c_int = 0x4;
    /// It goes when it is closed.
    pub const DELETEONCLOSE: c_int = 0x8;
    /// It must not be there yet.
    pub const EXCLUSIVE: c_int = 0x10;
    /// A database.
    pub const MAIN_DB: c_int = 0x100;
    /// The rollback journal of one.
    pub const MAIN_JOURNAL: c_int = 0x800;
    /// The write-ahead log of one.
    pub const WAL: c_int = 0x80000;
}

/// Operations of `xFileControl`.
pub mod control {
    use std::ffi::c_int;

    /// The name of the VFS is asked for.
    pub const VFSNAME: c_int = 12;
    /// A PRAGMA is to be answered, or left to SQLite.
    pub const PRAGMA: c_int = 14;
    /// All of a transaction is written; a sync follows, unless syncs are switched off.
    pub const SYNC: c_int = 21;
    /// Writes up to the commit are one.
    pub const BEGIN_ATOMIC_WRITE: c_int = 31;
    /// They end.
    pub const COMMIT_ATOMIC_WRITE: c_int = 32;
    /// They are void.
    pub const ROLLBACK_ATOMIC_WRITE: c_int = 33;
}

/// What a file promises (`xDeviceCharacteristics`).
pub mod promise {
    use std::ffi::c_int;

    /// Each write is there as a whole or not at all.
    pub const ATOMIC: c_int = 0x1;
    /// A file grows when its new bytes are there.
    pub const SAFE_APPEND: c_int = 0x200;
    /// Writes become durable in their order.
    pub const SEQUENTIAL: c_int = 0x400;
    /// A power cut changes no bytes but those that were being written.
    pub const POWERSAFE_OVERWRITE: c_int = 0x1000;
    /// Many writes can be one.
    pub const BATCH_ATOMIC: c_int = 0x4000;
}

/// How far a database is locked.
pub mod lock {
    use std::ffi::c_int;

    /// Not at all.
    pub const NONE: c_int = 0;
    /// For reading.
    pub const SHARED: c_int = 1;
    /// For reading, and nobody else will write.
    pub const RESERVED: c_int = 2;
    /// As before, and nobody begins to read.
    pub const PENDING: c_int = 3;
    /// For writing.
    pub const EXCLUSIVE: c_int = 4;
}

/// Locks of the index of a write-ahead log.
pub mod shm {
    use std::ffi::c_int;

    /// Give back.
    pub const UNLOCK: c_int = 1;
    /// With others; else alone.
    pub const SHARED: c_int = 4;
    /// How many there are.
    pub const LOCKS: usize = 8;
}

/// `sqlite3_file`: what SQLite knows of an open file. Each VFS has its own behind it.
#[repr(C)]
pub struct File {
    /// What can be done with it; null: it is not open.
    pub methods: *const IoMethods,
}

/// `sqlite3_io_methods`, version 2: without memory-mapped reads.
#[repr(C)]
#[allow(missing_docs)]
pub struct IoMethods {
    pub version: c_int,
    pub close: unsafe extern "C" fn(*mut File) -> Code,
    pub read: unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> Code,
    pub write: unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> Code,
    pub truncate: unsafe extern "C" fn(*mut File, i64) -> Code,
    pub sync: unsafe extern "C" fn(*mut File, c_int) -> Code,
    pub file_size: unsafe extern "C" fn(*mut File, *mut i64) -> Code,
    pub lock: unsafe extern "C" fn(*mut File, c_int) -> Code,
    pub unlock: unsafe extern "C" fn(*mut File, c_int) -> Code,
    pub check_reserved_lock: unsafe extern "C" fn(*mut File, *mut c_int) -> Code,
    pub file_control: unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> Code,
    pub sector_size: unsafe extern "C" fn(*mut File) -> c_int,
    pub device_characteristics: unsafe extern "C" fn(*mut File) -> c_int,
    pub shm_map: unsafe extern "C" fn(*mut File, c_int, c_int, c_int, *mut *mut c_void) -> Code,
    pub shm_lock: unsafe extern "C" fn(*mut File, c_int, c_int, c_int) -> Code,
    pub shm_barrier: unsafe extern "C" fn(*mut File),
    pub shm_unmap: unsafe extern "C" fn(*mut File, c_int) -> Code,
}

type DlSym = unsafe extern "C" fn(*mut Vfs, *mut c_void, *const c_char) -> Symbol;
/// What `dlsym` finds.
pub type Symbol = Option<unsafe extern "C" fn()>;

/// `sqlite3_vfs`, version 2: without replaceable system calls. The last fields are those of
/// version 3, which others may have.
#[repr(C)]
#[allow(missing_docs)]
pub struct Vfs {
    pub version: c_int,
    pub file_bytes: c_int,
    pub path_max: c_int,
    pub next: *mut Vfs,
    pub name: *const c_char,
    pub data: *mut c_void,
    pub open: unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> Code,
    pub delete: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> Code,
    pub access: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> Code,
    pub full_pathname: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> Code,
    pub dl_open: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> *mut c_void>,
    pub dl_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char)>,
    pub dl_sym: Option<DlSym>,
    pub dl_close: Option<unsafe extern "C" fn(*mut Vfs, *mut c_void)>,
    pub randomness: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub sleep: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    pub current_time: unsafe extern "C" fn(*mut Vfs, *mut f64) -> Code,
    pub last_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int>,
    pub current_time_int64: Option<unsafe extern "C" fn(*mut Vfs, *mut i64) -> Code>,
    pub set_system_call: *const c_void,
    pub get_system_call: *const c_void,
    pub next_system_call: *const c_void,
}

/// `sqlite3_vfs_find`.
pub type VfsFind = unsafe extern "C" fn(*const c_char) -> *mut Vfs;
/// `sqlite3_vfs_register`.
pub type VfsRegister = unsafe extern "C" fn(*mut Vfs, c_int) -> Code;
/// `sqlite3_uri_parameter`.
pub type UriParameter = unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char;
/// `sqlite3_mprintf`.
pub type Mprintf = unsafe extern "C" fn(*const c_char, ...) -> *mut c_char;
/// `sqlite3_log`.
pub type Log = unsafe extern "C" fn(c_int, *const c_char, ...);

/// What is used of SQLite itself.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Api {
    pub vfs_find: VfsFind,
    pub vfs_register: VfsRegister,
    pub uri_parameter: UriParameter,
    pub mprintf: Mprintf,
    pub log: Log,
}

/// Places in `sqlite3_api_routines`, which is an array of pointers to functions.
pub mod routine {
    /// `sqlite3_mprintf`.
    pub const MPRINTF: usize = 69;
    /// `sqlite3_vfs_find`.
    pub const VFS_FIND: usize = 141;
    /// `sqlite3_vfs_register`.
    pub const VFS_REGISTER: usize = 142;
    /// `sqlite3_log`.
    pub const LOG: usize = 167;
    /// `sqlite3_uri_parameter`.
    pub const URI_PARAMETER: usize = 189;
}
