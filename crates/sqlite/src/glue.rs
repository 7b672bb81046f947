//! The functions that SQLite calls. All `unsafe` of this crate is here: what SQLite hands over are
//! pointers whose meaning its documentation promises.
//!
//! What leads into no image (temporary files, databases that are ordinary files) is opened by the
//! VFS that was the default before, which SQLite then asks directly: the memory of an open file is
//! large enough for that one's.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io::Write;
use std::mem::{MaybeUninit, transmute};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;

use crate::abi::{
    Api, Code, File, IoMethods, Log, Mprintf, Symbol, UriParameter, Vfs, VfsFind, VfsRegister,
    code, control, open, routine, shm,
};
use crate::file::{Open, Role, Stored, of};
use crate::images::{self, Inside, OpenError};
use crate::name::Parameters;

/// What the name of the VFS is.
pub const NAME: &CStr = c"tureen";

/// The PRAGMA that tells what the medium of an image was asked for.
const COUNTERS: &[u8] = b"tureen_counters";

/// Behind a `Vfs`.
struct Data {
    /// The VFS that was the default before.
    base: *mut Vfs,
    api: Api,
}

/// An open file of ours.
#[repr(C)]
struct Ours {
    file: File,
    vfs: *mut Vfs,
    open: *mut Open,
}

/// Registers the VFS with a SQLite, once; `default`: for all names that ask for no other.
///
/// # Safety
/// The functions must be those of one SQLite, which stays loaded, as this code does.
pub unsafe fn register(api: Api, default: bool) -> Code {
    // SAFETY: the caller's promise; names end in zeros.
    unsafe {
        if !(api.vfs_find)(NAME.as_ptr()).is_null() {
            return code::OK;
        }
        let base = (api.vfs_find)(ptr::null());
        if base.is_null() {
            return code::NOTFOUND;
        }
        let ours = size_of::<Ours>() as c_int;
        // Both live as long as the process: SQLite never gives a VFS back.
        let data = Box::leak(Box::new(Data { base, api }));
        let vfs = Box::leak(Box::new(Vfs {
            // Later ones have a time in whole milliseconds, for which SQLite asks `current_time`
            // here.
            version: 1,
            file_bytes: ours.max((*base).file_bytes),
            path_max: (*base).path_max.max(4096),
            next: ptr::null_mut(),
            name: NAME.as_ptr(),
            data: ptr::from_mut(data).cast(),
            open: x_open,
            delete: x_delete,
            access: x_access,
            full_pathname: x_full_pathname,
            dl_open: Some(x_dl_open),
            dl_error: Some(x_dl_error),
            dl_sym: Some(x_dl_sym),
            dl_close: Some(x_dl_close),
            randomness: x_randomness,
            sleep: x_sleep,
            current_time: x_current_time,
            last_error: None,
            current_time_int64: None,
            set_system_call: ptr::null(),
            get_system_call: ptr::null(),
            next_system_call: ptr::null(),
        }));
        (api.vfs_register)(vfs, default.into())
    }
}

/// What an extension is handed, as functions.
///
/// # Safety
/// It must be the `sqlite3_api_routines` of a SQLite of version 3.8 or newer.
pub unsafe fn api_of(routines: *const Option<unsafe extern "C" fn()>) -> Option<Api> {
    type Routine = unsafe extern "C" fn();
    // SAFETY: the array has these places since 3.8, each with a function of the type that is named.
    unsafe {
        let at = |place: usize| *routines.add(place);
        Some(Api {
            vfs_find: transmute::<Routine, VfsFind>(at(routine::VFS_FIND)?),
            vfs_register: transmute::<Routine, VfsRegister>(at(routine::VFS_REGISTER)?),
            uri_parameter: transmute::<Routine, UriParameter>(at(routine::URI_PARAMETER)?),
            mprintf: transmute::<Routine, Mprintf>(at(routine::MPRINTF)?),
            log: transmute::<Routine, Log>(at(routine::LOG)?),
        })
    }
}

static METHODS: IoMethods = IoMethods {
    version: 2,
    close: x_close,
    read: x_read,
    write: x_write,
    truncate: x_truncate,
    sync: x_sync,
    file_size: x_file_size,
    lock: x_lock,
    unlock: x_unlock,
    check_reserved_lock: x_check_reserved_lock,
    file_control: x_file_control,
    sector_size: x_sector_size,
    device_characteristics: x_device_characteristics,
    shm_map: x_shm_map,
    shm_lock: x_shm_lock,
    shm_barrier: x_shm_barrier,
    shm_unmap: x_shm_unmap,
};

/// A result as a code. A panic must not reach SQLite's frames: it is an I/O error there.
fn guarded(work: impl FnOnce() -> Result<(), Code>) -> Code {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => code::OK,
        Ok(Err(code)) => code,
        Err(_) => code::IOERR,
    }
}

/// # Safety
/// A VFS that [`register`] made.
unsafe fn data<'a>(vfs: *mut Vfs) -> &'a Data {
    // SAFETY: so its data are ours, and stay.
    unsafe { &*(*vfs).data.cast::<Data>() }
}

/// # Safety
/// A file that [`x_open`] opened with [`METHODS`], and that is not closed. SQLite uses a file from
/// one thread at a time.
unsafe fn opened<'a>(file: *mut File) -> &'a mut Open {
    // SAFETY: so there is one behind it, and nobody else has it now.
    unsafe { &mut *(*file.cast::<Ours>()).open }
}

/// # Safety
/// As [`opened`].
unsafe fn stored<'a>(file: *mut File) -> Result<&'a mut Stored, Code> {
    // SAFETY: the caller's promise.
    match unsafe { opened(file) } {
        Open::Stored(stored) => Ok(stored),
        Open::Memory(_) => Err(code::IOERR),
    }
}

/// # Safety
/// Null, or a text that ends in a zero and outlives the result.
unsafe fn path<'a>(name: *const c_char) -> Option<&'a Path> {
    // SAFETY: the caller's promise.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
    Some(Path::new(OsStr::from_bytes(name.to_bytes())))
}

/// Tells the log of SQLite why something failed.
fn tell(data: &Data, code: Code, why: &OpenError) {
    log::error!("{why}");
    if let Ok(text) = CString::new(why.to_string()) {
        // SAFETY: the format takes one text.
        unsafe { (data.api.log)(code, c"tureen: %s".as_ptr(), text.as_ptr()) };
    }
}

/// A file of an image.
fn open_inside(inside: &Inside, parameters: Parameters, flags: c_int) -> Result<Open, OpenError> {
    let failed = |why| OpenError::File {
        path: inside.path.display().to_string(),
        why,
    };
    let image = inside.mounted(parameters.mode, parameters.domain)?;
    let found = image.find(&inside.path);
    let is_there = found.is_ok();
    // Nobody needs it after a crash, as each transaction is whole.
    if flags & open::MAIN_JOURNAL != 0 && image.is_strong() && !is_there {
        return Ok(Open::Memory(Vec::new()));
    }
    let node = match flags & open::CREATE != 0 {
        true => image.find_or_make(&inside.path, flags & open::EXCLUSIVE != 0),
        false => found,
    };
    let node = node.map_err(failed)?;
    let role = match () {
        () if flags & open::MAIN_DB != 0 => Role::Database,
        () if flags & open::WAL != 0 => Role::Log,
        () => Role::Other,
    };
    let database = match role {
        Role::Log => image.find(&database_of(&inside.path)).map_err(failed)?,
        _ => node.clone(),
    };
    let shared = image.shared(&database);
    let mut file = Stored::new(image, node, role, shared);
    if let Some(pending_max) = parameters.pending_max {
        file.set_pending_max(pending_max);
    }
    if flags & open::DELETEONCLOSE != 0 {
        file.removed_at_close(inside.path.clone());
    }
    Ok(Open::Stored(file))
}

/// The path of the database that a log belongs to.
fn database_of(log: &Path) -> std::path::PathBuf {
    let name = log.as_os_str().as_bytes();
    let name = name.strip_suffix(b"-wal").unwrap_or(name);
    Path::new(OsStr::from_bytes(name)).to_owned()
}

// SAFETY of all below: SQLite calls them with the pointers that its documentation promises, which
// are those that the helpers above ask for.

unsafe extern "C" fn x_open(
    vfs: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out: *mut c_int,
) -> Code {
    // SAFETY: see above. The memory of the file has the size that the VFS asks for.
    unsafe {
        let data = data(vfs);
        let inside = path(name).and_then(Inside::of);
        let Some(inside) = inside else {
            return ((*data.base).open)(data.base, name, file, flags, out);
        };
        (*file).methods = ptr::null();
        guarded(|| {
            let of_name = |asked: &str| {
                if flags & open::MAIN_DB == 0 {
                    return None; // other names have no parameters
                }
                let asked = CString::new(asked).ok()?;
                let value = (data.api.uri_parameter)(name, asked.as_ptr());
                (!value.is_null()).then(|| CStr::from_ptr(value).to_str().ok())?
            };
            let opened = Parameters::of(of_name)
                .and_then(|parameters| open_inside(&inside, parameters, flags));
            let opened = opened.map_err(|why| {
                let code = match &why {
                    OpenError::File { why, .. } => of(why, code::CANTOPEN),
                    _ => code::CANTOPEN,
                };
                tell(data, code, &why);
                code
            })?;
            let ours = file.cast::<Ours>();
            (*ours).vfs = vfs;
            (*ours).open = Box::into_raw(Box::new(opened));
            (*file).methods = &raw const METHODS;
            if let Some(out) = out.as_mut() {
                *out = flags;
            }
            Ok(())
        })
    }
}

unsafe extern "C" fn x_delete(vfs: *mut Vfs, name: *const c_char, sync_dir: c_int) -> Code {
    // SAFETY: see above.
    unsafe {
        let data = data(vfs);
        let Some(inside) = path(name).and_then(Inside::of) else {
            return ((*data.base).delete)(data.base, name, sync_dir);
        };
        guarded(|| {
            let image = inside.mounted(None, None).map_err(|_| code::IOERR_DELETE)?;
            match image.remove(&inside.path) {
                // A journal in memory was never there.
                Err(vfs::Error::Errno(vfs::Errno::NOENT)) if image.is_strong() => Ok(()),
                Err(vfs::Error::Errno(vfs::Errno::NOENT)) => Err(code::IOERR_DELETE_NOENT),
                Err(why) => Err(of(&why, code::IOERR_DELETE)),
                Ok(()) if sync_dir != 0 && !image.is_strong() => {
                    let synced = vfs::FileSystem::syncfs(image.fs());
                    synced.map_err(|why| of(&why, code::IOERR_DELETE))
                }
                Ok(()) => Ok(()),
            }
        })
    }
}

unsafe extern "C" fn x_access(
    vfs: *mut Vfs,
    name: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> Code {
    // SAFETY: see above.
    unsafe {
        let data = data(vfs);
        let Some(inside) = path(name).and_then(Inside::of) else {
            return ((*data.base).access)(data.base, name, flags, out);
        };
        guarded(|| {
            let image = inside.mounted(None, None).map_err(|_| code::CANTOPEN)?;
            *out = image.find(&inside.path).is_ok().into();
            Ok(())
        })
    }
}

unsafe extern "C" fn x_full_pathname(
    vfs: *mut Vfs,
    name: *const c_char,
    len: c_int,
    out: *mut c_char,
) -> Code {
    // SAFETY: see above; `out` has room for `len` bytes.
    unsafe {
        let data = data(vfs);
        let full = path(name).and_then(|path| images::absolute(path).ok());
        let full = full.filter(|path| Inside::of(path).is_some());
        let Some(full) = full else {
            return ((*data.base).full_pathname)(data.base, name, len, out);
        };
        let mut buf = std::slice::from_raw_parts_mut(out.cast::<u8>(), len.max(0) as usize);
        let written = buf
            .write_all(full.as_os_str().as_bytes())
            .and_then(|()| buf.write_all(&[0]));
        written.map_or(code::CANTOPEN, |()| code::OK)
    }
}

unsafe extern "C" fn x_dl_open(vfs: *mut Vfs, name: *const c_char) -> *mut c_void {
    // SAFETY: see above.
    unsafe {
        let base = data(vfs).base;
        (*base).dl_open.map_or(ptr::null_mut(), |f| f(base, name))
    }
}

unsafe extern "C" fn x_dl_error(vfs: *mut Vfs, len: c_int, out: *mut c_char) {
    // SAFETY: see above.
    unsafe {
        let base = data(vfs).base;
        if let Some(f) = (*base).dl_error {
            f(base, len, out);
        }
    }
}

unsafe extern "C" fn x_dl_sym(vfs: *mut Vfs, library: *mut c_void, name: *const c_char) -> Symbol {
    // SAFETY: see above.
    unsafe {
        let base = data(vfs).base;
        (*base).dl_sym.and_then(|f| f(base, library, name))
    }
}

unsafe extern "C" fn x_dl_close(vfs: *mut Vfs, library: *mut c_void) {
    // SAFETY: see above.
    unsafe {
        let base = data(vfs).base;
        if let Some(f) = (*base).dl_close {
            f(base, library);
        }
    }
}

unsafe extern "C" fn x_randomness(vfs: *mut Vfs, len: c_int, out: *mut c_char) -> c_int {
    // SAFETY: see above.
    unsafe {
        let base = data(vfs).base;
        ((*base).randomness)(base, len, out)
    }
}

unsafe extern "C" fn x_sleep(vfs: *mut Vfs, microseconds: c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        let base = data(vfs).base;
        ((*base).sleep)(base, microseconds)
    }
}

unsafe extern "C" fn x_current_time(vfs: *mut Vfs, out: *mut f64) -> Code {
    // SAFETY: see above.
    unsafe {
        let base = data(vfs).base;
        ((*base).current_time)(base, out)
    }
}

unsafe extern "C" fn x_close(file: *mut File) -> Code {
    // SAFETY: see above. It was made by `Box::into_raw`, and is not used again.
    unsafe {
        let open = (*file.cast::<Ours>()).open;
        (*file).methods = ptr::null();
        guarded(|| {
            drop(Box::from_raw(open));
            Ok(())
        })
    }
}

unsafe extern "C" fn x_read(file: *mut File, out: *mut c_void, len: c_int, at: i64) -> Code {
    // SAFETY: see above; `out` has room for `len` bytes, which need not have been written to.
    unsafe {
        let room = std::slice::from_raw_parts_mut(out.cast::<MaybeUninit<u8>>(), len as usize);
        room.fill(MaybeUninit::new(0));
        let buf = std::slice::from_raw_parts_mut(out.cast::<u8>(), len as usize);
        guarded(|| match opened(file).read(at as u64, buf)? == buf.len() {
            true => Ok(()),
            false => Err(code::IOERR_SHORT_READ),
        })
    }
}

unsafe extern "C" fn x_write(file: *mut File, data: *const c_void, len: c_int, at: i64) -> Code {
    // SAFETY: see above; `data` has `len` bytes.
    unsafe {
        let data = std::slice::from_raw_parts(data.cast::<u8>(), len as usize);
        guarded(|| opened(file).write(at as u64, data))
    }
}

unsafe extern "C" fn x_truncate(file: *mut File, size: i64) -> Code {
    // SAFETY: see above.
    guarded(|| unsafe { opened(file) }.truncate(size as u64))
}

unsafe extern "C" fn x_sync(file: *mut File, _: c_int) -> Code {
    // SAFETY: see above.
    guarded(|| unsafe { opened(file) }.sync())
}

unsafe extern "C" fn x_file_size(file: *mut File, out: *mut i64) -> Code {
    // SAFETY: see above.
    guarded(|| unsafe {
        *out = opened(file).size() as i64;
        Ok(())
    })
}

unsafe extern "C" fn x_lock(file: *mut File, level: c_int) -> Code {
    guarded(|| {
        // SAFETY: see above.
        let (shared, own) = unsafe { stored(file) }?.locks();
        shared.lock(own, level).map_err(|_| code::BUSY)
    })
}

unsafe extern "C" fn x_unlock(file: *mut File, level: c_int) -> Code {
    guarded(|| {
        // SAFETY: see above.
        unsafe { stored(file) }?.unlock(level);
        Ok(())
    })
}

unsafe extern "C" fn x_check_reserved_lock(file: *mut File, out: *mut c_int) -> Code {
    guarded(|| {
        // SAFETY: see above.
        unsafe { *out = stored(file)?.locks().0.is_reserved().into() };
        Ok(())
    })
}

unsafe extern "C" fn x_file_control(file: *mut File, operation: c_int, arg: *mut c_void) -> Code {
    // SAFETY: see above; for this operation the argument is where the name goes, which SQLite
    // frees.
    unsafe {
        if operation == control::VFSNAME {
            let api = data((*file.cast::<Ours>()).vfs).api;
            *arg.cast::<*mut c_char>() = (api.mprintf)(c"%s".as_ptr(), NAME.as_ptr());
            return code::OK;
        }
        if operation == control::PRAGMA {
            return pragma(file, arg.cast());
        }
        guarded(|| opened(file).control(operation))
    }
}

/// Answers `PRAGMA tureen_counters`; all others are SQLite's.
///
/// # Safety
/// As [`opened`]; `words` are the answer, which SQLite frees, the name, and its argument or null.
unsafe fn pragma(file: *mut File, words: *mut *mut c_char) -> Code {
    // SAFETY: the caller's promise. The format takes one text.
    unsafe {
        let name = CStr::from_ptr(*words.add(1)).to_bytes();
        if !name.eq_ignore_ascii_case(COUNTERS) {
            return code::NOTFOUND;
        }
        let api = data((*file.cast::<Ours>()).vfs).api;
        guarded(|| {
            let counters = stored(file)?.counters();
            let counters = CString::new(counters).map_err(|_| code::IOERR)?;
            *words = (api.mprintf)(c"%s".as_ptr(), counters.as_ptr());
            Ok(())
        })
    }
}

unsafe extern "C" fn x_sector_size(_: *mut File) -> c_int {
    4096
}

unsafe extern "C" fn x_device_characteristics(file: *mut File) -> c_int {
    // SAFETY: see above.
    unsafe { opened(file) }.promises()
}

unsafe extern "C" fn x_shm_map(
    file: *mut File,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> Code {
    guarded(|| {
        // SAFETY: see above. A region stays where it is until nobody has the index.
        unsafe {
            let (shared, own) = stored(file)?.locks();
            let at = shared.map(own, region as usize, bytes as usize, extend != 0);
            *out = at.map_or(ptr::null_mut(), |at| at.cast());
        }
        Ok(())
    })
}

unsafe extern "C" fn x_shm_lock(file: *mut File, first: c_int, count: c_int, how: c_int) -> Code {
    guarded(|| {
        // SAFETY: see above.
        let (shared, own) = unsafe { stored(file) }?.locks();
        let locks = first as usize..(first + count) as usize;
        if locks.end > shm::LOCKS {
            return Err(code::MISUSE);
        }
        if how & shm::UNLOCK != 0 {
            shared.unlock_index(own, locks);
            return Ok(());
        }
        let locked = shared.lock_index(own, locks, how & shm::SHARED != 0);
        locked.map_err(|_| code::BUSY)
    })
}

unsafe extern "C" fn x_shm_barrier(_: *mut File) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

unsafe extern "C" fn x_shm_unmap(file: *mut File, _: c_int) -> Code {
    guarded(|| {
        // SAFETY: see above.
        let (shared, own) = unsafe { stored(file) }?.locks();
        shared.unmap(own);
        Ok(())
    })
}
