//! SQLite databases inside Tureen images, without a mount.
//!
//! It is a VFS of SQLite: as an extension for programs that load one, and as a library for programs
//! in Rust. A name leads into an image: the part that is a file, and not a directory, is the image.
//!
//! ```text
//! sqlite> .load ./target/release/libtureen_sqlite
//! sqlite> .open file:demo.img/app.db?vfs=tureen
//! ```
//!
//! In a strong image, which is the default, each transaction is one write of the engine: it is
//! there as a whole after any crash, and durable when COMMIT returns, whatever `journal_mode` and
//! `synchronous` are. The design is in `docs/design/sqlite.md`.
//!
//! Modules, each of which uses those before it: [`abi`] (SQLite's interface), `pending` (what a
//! transaction has written), `locks` (what connections share), `images`, `name` (parameters),
//! `file` (open files, and the commit), `glue` (what SQLite calls; all `unsafe`).

pub mod abi;
mod file;
mod glue;
mod images;
mod locks;
mod name;
mod pending;

pub use glue::{NAME, register};
pub use images::{OpenError, attach, detach};

use abi::{Code, code};
use std::ffi::{c_char, c_void};

/// What SQLite calls when it loads the extension `tureen_sqlite`: it registers the VFS `tureen`,
/// which does not become the default one.
///
/// # Safety
/// For SQLite alone: the pointers must be those that it hands to an extension.
#[allow(unsafe_code)]
// SAFETY: no other symbol has this name, which SQLite makes of that of the library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_tureensqlite_init(
    _database: *mut c_void,
    _message: *mut *mut c_char,
    routines: *const Option<unsafe extern "C" fn()>,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(api) = glue::api_of(routines) else {
            return code::NOTFOUND;
        };
        match register(api, false) {
            code::OK => code::OK_LOAD_PERMANENTLY,
            failed => failed,
        }
    }
}
