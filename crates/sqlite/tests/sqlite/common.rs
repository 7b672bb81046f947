//! A SQLite with the VFS, and images for it.

// Functions of SQLite are handed over, whose types differ in name only: `abi` compares them.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::path::Path;
use std::sync::{Arc, Once};

use pmem::{Options, Pool};
use rusqlite::{Connection, OpenFlags};
use soupfs::{FormatOptions, Mode, MountOptions, SoupFs};
use tureen_sqlite::abi::{Api, Vfs, code};
use vfs::{ManualClock, Time};

unsafe extern "C" fn vfs_find(name: *const c_char) -> *mut Vfs {
    // SAFETY: as SQLite has it; the layouts are the same.
    unsafe { libsqlite3_sys::sqlite3_vfs_find(name).cast() }
}

unsafe extern "C" fn vfs_register(vfs: *mut Vfs, default: c_int) -> c_int {
    // SAFETY: as SQLite has it; the layouts are the same.
    unsafe { libsqlite3_sys::sqlite3_vfs_register(vfs.cast(), default) }
}

/// Registers the VFS with the SQLite of the tests.
pub fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let api = Api {
            vfs_find,
            vfs_register,
            uri_parameter: libsqlite3_sys::sqlite3_uri_parameter,
            mprintf: libsqlite3_sys::sqlite3_mprintf,
            log: libsqlite3_sys::sqlite3_log,
        };
        // SAFETY: they are of one SQLite, which is part of this program.
        assert_eq!(unsafe { tureen_sqlite::register(api, false) }, code::OK);
    });
}

/// Makes an image file with an empty file system.
pub fn make_image(path: &Path, len: u64) {
    let pool = Pool::create(path, len, &Options::default()).expect("an image");
    format(&Arc::new(pool));
}

/// An empty file system.
pub fn format(pool: &Arc<Pool>) {
    let options = FormatOptions {
        uuid: [7; 16],
        label: "sqlite".into(),
        hash_key: [9; 16],
        time: Time(1),
        owner: (0, 0),
        zeroed: true,
    };
    soupfs::format(pool, &options).expect("format");
}

/// A mounted file system in memory, without threads of its own.
pub fn mount(pool: Arc<Pool>, mode: Mode) -> SoupFs {
    let options = MountOptions {
        mode,
        manual: true,
        ..MountOptions::new(Arc::new(ManualClock::new(Time(5))))
    };
    SoupFs::mount(pool, options).expect("mount")
}

/// A database by the VFS, with parameters of its name.
pub fn connect_with(path: &Path, parameters: &str) -> rusqlite::Result<Connection> {
    register();
    let name = format!("file:{}?vfs=tureen{parameters}", path.display());
    Connection::open_with_flags(name, OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI)
}

/// A database by the VFS.
pub fn connect(path: &Path) -> Connection {
    connect_with(path, "").expect("it opens")
}

/// What `PRAGMA integrity_check` says.
pub fn integrity(connection: &Connection) -> String {
    let row = |row: &rusqlite::Row<'_>| row.get(0);
    let said = connection.query_row("PRAGMA integrity_check", [], row);
    said.unwrap_or_else(|e| format!("no answer: {e}"))
}

/// One number.
pub fn number(connection: &Connection, query: &str) -> i64 {
    let found = connection.query_row(query, [], |row| row.get(0));
    found.unwrap_or_else(|e| panic!("{query}: {e}"))
}
