//! Gfarm's client library, loaded when a gfarm2fs mount is first met: which nodes have a replica of a file.
//!
//! The functions are those of `gfarm/gfs.h`; a result is an opaque pointer, so that no structure of the library has to
//! be known. It is not made for threads, so one call runs at a time.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use waystage_sync::Mutex;

/// Of Debian's libgfarm1, and of every release of 2.x.
const SONAME: &CStr = c"libgfarm.so.1";

/// `GFARM_ERR_NO_SUCH_FILE_OR_DIRECTORY`, `..._OPERATION_NOT_PERMITTED`, `..._PERMISSION_DENIED`: errors of one file.
const OF_ONE_FILE: [&str; 4] =
    ["no such file or directory", "operation not permitted", "permission denied", "no such object"];

/// The library tries to connect for as long; after a failure it is not asked again for this time, or each of a
/// million files would wait.
const QUIET: Duration = Duration::from_secs(30);

/// The most replicas of a file that are believed.
const MOST_REPLICAS: c_int = 4096;

type ByName = unsafe extern "C" fn(*const c_char, c_int, *mut *mut c_void) -> c_int;
type Number = unsafe extern "C" fn(*mut c_void) -> c_int;
type NthHost = unsafe extern "C" fn(*mut c_void, c_int) -> *const c_char;
type Free = unsafe extern "C" fn(*mut c_void);
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type Initialize = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int;

struct Library {
    by_name: ByName,
    number: Number,
    nth_host: NthHost,
    free: Free,
    error_string: ErrorString,
    failed: Mutex<Option<(Instant, String)>>,
}

/// The names of the nodes with a complete replica of the file with this URL; None where the library is not installed.
///
/// # Errors
/// What Gfarm says, in one sentence.
pub(super) fn replica_hosts(url: &[u8]) -> Result<Option<Vec<Vec<u8>>>, String> {
    static LIBRARY: OnceLock<Option<Result<Library, String>>> = OnceLock::new();
    match LIBRARY.get_or_init(Library::load) {
        None => Ok(None),
        Some(Err(reason)) => Err(reason.clone()),
        Some(Ok(library)) => library.hosts(url).map(Some),
    }
}

#[allow(unsafe_code)]
impl Library {
    /// None where it is not installed.
    fn load() -> Option<Result<Self, String>> {
        // SAFETY: the name is a C string; constructors of the library run, as in every program that links it.
        let handle = unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return None;
        }
        Some(Self::initialised(handle))
    }

    fn initialised(handle: *mut c_void) -> Result<Self, String> {
        let find = |name: &CStr| {
            // SAFETY: the handle is open for good, and the name is a C string.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if found.is_null() {
                return Err(format!("libgfarm has no {}", name.to_string_lossy()));
            }
            Ok(found)
        };
        // SAFETY: the types are those that gfarm/gfarm.h and gfarm/gfs.h declare for these names.
        let (initialize, library) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Initialize>(find(c"gfarm_initialize")?),
                Self {
                    by_name: std::mem::transmute::<*mut c_void, ByName>(find(
                        c"gfs_replica_info_by_name",
                    )?),
                    number: std::mem::transmute::<*mut c_void, Number>(find(
                        c"gfs_replica_info_number",
                    )?),
                    nth_host: std::mem::transmute::<*mut c_void, NthHost>(find(
                        c"gfs_replica_info_nth_host",
                    )?),
                    free: std::mem::transmute::<*mut c_void, Free>(find(c"gfs_replica_info_free")?),
                    error_string: std::mem::transmute::<*mut c_void, ErrorString>(find(
                        c"gfarm_error_string",
                    )?),
                    failed: Mutex::new(None),
                },
            )
        };
        // The library keeps the pointers: they are leaked, once.
        let name = CString::new("waystage").unwrap_or_default().into_raw();
        let arguments = Box::leak(Box::new([name, std::ptr::null_mut()]));
        let (mut count, mut values) = (1, arguments.as_mut_ptr());
        // SAFETY: a count and a vector of arguments as main() has them, valid for ever.
        let error = unsafe { initialize(&raw mut count, &raw mut values) };
        if error != 0 {
            return Err(library.reason(error));
        }
        Ok(library)
    }

    fn reason(&self, error: c_int) -> String {
        // SAFETY: the function gives a constant string for every number.
        let text = unsafe { (self.error_string)(error) };
        if text.is_null() {
            return format!("error {error}");
        }
        // SAFETY: not null, and ended by a zero.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    fn hosts(&self, url: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let url = CString::new(url).map_err(|_| "a URL with a zero".to_owned())?;
        let mut failed = self.failed.lock();
        if let Some((when, reason)) = &*failed {
            if when.elapsed() < QUIET {
                return Err(reason.clone());
            }
        }
        *failed = None;
        let mut info = std::ptr::null_mut();
        // SAFETY: a C string and a place for a pointer; `failed` is locked, so no other call runs. Without flags only
        // complete replicas on living nodes count.
        let error = unsafe { (self.by_name)(url.as_ptr(), 0, &raw mut info) };
        if error != 0 {
            let reason = self.reason(error);
            if !OF_ONE_FILE.contains(&reason.as_str()) {
                *failed = Some((Instant::now(), reason.clone()));
            }
            return Err(reason);
        }
        let mut hosts = Vec::new();
        // SAFETY: `info` is what the library gave, used until it is freed and not after; hosts are C strings or null.
        unsafe {
            for index in 0..(self.number)(info).min(MOST_REPLICAS) {
                let host = (self.nth_host)(info, index);
                if !host.is_null() {
                    hosts.push(CStr::from_ptr(host).to_bytes().to_vec());
                }
            }
            (self.free)(info);
        }
        Ok(hosts)
    }
}
