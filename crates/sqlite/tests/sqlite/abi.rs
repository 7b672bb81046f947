//! What is declared of SQLite's interface is what its headers have.

use std::mem::offset_of;
use tureen_sqlite::abi::{File, IoMethods, Vfs, code, control, lock, open, promise, shm};

#[test]
fn layouts_are_those_of_the_headers() {
    use libsqlite3_sys::{sqlite3_file, sqlite3_io_methods as Io, sqlite3_vfs as Theirs};
    assert_eq!(size_of::<Vfs>(), size_of::<Theirs>());
    assert_eq!(size_of::<File>(), size_of::<sqlite3_file>());
    let vfs = [
        (offset_of!(Vfs, file_bytes), offset_of!(Theirs, szOsFile)),
        (offset_of!(Vfs, name), offset_of!(Theirs, zName)),
        (offset_of!(Vfs, data), offset_of!(Theirs, pAppData)),
        (offset_of!(Vfs, open), offset_of!(Theirs, xOpen)),
        (
            offset_of!(Vfs, full_pathname),
            offset_of!(Theirs, xFullPathname),
        ),
        (offset_of!(Vfs, dl_close), offset_of!(Theirs, xDlClose)),
        (
            offset_of!(Vfs, current_time),
            offset_of!(Theirs, xCurrentTime),
        ),
        (
            offset_of!(Vfs, last_error),
            offset_of!(Theirs, xGetLastError),
        ),
    ];
    let methods = [
        (offset_of!(IoMethods, read), offset_of!(Io, xRead)),
        (offset_of!(IoMethods, sync), offset_of!(Io, xSync)),
        (
            offset_of!(IoMethods, file_control),
            offset_of!(Io, xFileControl),
        ),
        (offset_of!(IoMethods, shm_map), offset_of!(Io, xShmMap)),
        (offset_of!(IoMethods, shm_unmap), offset_of!(Io, xShmUnmap)),
    ];
    for (ours, theirs) in vfs.into_iter().chain(methods) {
        assert_eq!(ours, theirs);
    }
}

#[test]
fn numbers_are_those_of_the_headers() {
    use libsqlite3_sys as theirs;
    let pairs = [
        (code::BUSY, theirs::SQLITE_BUSY),
        (code::FULL, theirs::SQLITE_FULL),
        (code::CANTOPEN, theirs::SQLITE_CANTOPEN),
        (code::NOTFOUND, theirs::SQLITE_NOTFOUND),
        (code::CORRUPT, theirs::SQLITE_CORRUPT),
        (code::IOERR_SHORT_READ, theirs::SQLITE_IOERR_SHORT_READ),
        (code::IOERR_DELETE_NOENT, theirs::SQLITE_IOERR_DELETE_NOENT),
        (code::IOERR_BEGIN_ATOMIC, theirs::SQLITE_IOERR_BEGIN_ATOMIC),
        (
            code::OK_LOAD_PERMANENTLY,
            theirs::SQLITE_OK_LOAD_PERMANENTLY,
        ),
        (open::CREATE, theirs::SQLITE_OPEN_CREATE),
        (open::EXCLUSIVE, theirs::SQLITE_OPEN_EXCLUSIVE),
        (open::DELETEONCLOSE, theirs::SQLITE_OPEN_DELETEONCLOSE),
        (open::MAIN_DB, theirs::SQLITE_OPEN_MAIN_DB),
        (open::MAIN_JOURNAL, theirs::SQLITE_OPEN_MAIN_JOURNAL),
        (open::WAL, theirs::SQLITE_OPEN_WAL),
        (control::VFSNAME, theirs::SQLITE_FCNTL_VFSNAME),
        (control::PRAGMA, theirs::SQLITE_FCNTL_PRAGMA),
        (control::SYNC, theirs::SQLITE_FCNTL_SYNC),
        (
            control::BEGIN_ATOMIC_WRITE,
            theirs::SQLITE_FCNTL_BEGIN_ATOMIC_WRITE,
        ),
        (
            control::COMMIT_ATOMIC_WRITE,
            theirs::SQLITE_FCNTL_COMMIT_ATOMIC_WRITE,
        ),
        (
            control::ROLLBACK_ATOMIC_WRITE,
            theirs::SQLITE_FCNTL_ROLLBACK_ATOMIC_WRITE,
        ),
        (promise::ATOMIC, theirs::SQLITE_IOCAP_ATOMIC),
        (promise::SEQUENTIAL, theirs::SQLITE_IOCAP_SEQUENTIAL),
        (promise::BATCH_ATOMIC, theirs::SQLITE_IOCAP_BATCH_ATOMIC),
        (
            promise::POWERSAFE_OVERWRITE,
            theirs::SQLITE_IOCAP_POWERSAFE_OVERWRITE,
        ),
        (lock::SHARED, theirs::SQLITE_LOCK_SHARED),
        (lock::EXCLUSIVE, theirs::SQLITE_LOCK_EXCLUSIVE),
        (shm::UNLOCK, theirs::SQLITE_SHM_UNLOCK),
        (shm::SHARED, theirs::SQLITE_SHM_SHARED),
    ];
    for (ours, theirs) in pairs {
        assert_eq!(ours, theirs);
    }
    assert_eq!(shm::LOCKS, theirs::SQLITE_SHM_NLOCK as usize);
}
