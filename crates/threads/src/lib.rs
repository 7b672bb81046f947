//! Where threads run, and in which scheduling class; and where those of others do ([`scout`]).
//!
//! Serving threads of a mount are bound to their client's core, and of the idle class (see
//! [`idle_class`]). A new thread inherits both, one that the kernel makes for io_uring the class.
//! So who starts threads from there leaves the class before ([`idle_class::leave`]), or has the new
//! one begin with [`as_usual`].

#[allow(
    unsafe_code,
    reason = "no safe wrapper sets a thread's scheduling policy"
)]
pub mod class;
#[allow(unsafe_code, reason = "no safe wrapper gives a thread its own files")]
mod files;
pub mod idle_class;
pub mod scout;

use rustix::process::getpid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use class::Policy;

/// A new thread gets the class and the cores that threads of this process have, whoever started it.
pub fn as_usual() {
    if class::policy() == Policy::IDLE {
        class::set_policy(None, Policy::USUAL);
    }
    // The first thread is nobody's that serves requests.
    let cores = sched_getaffinity(Some(getpid()));
    if let Err(error) = cores.and_then(|cores| sched_setaffinity(None, &cores)) {
        log::debug!("a thread keeps to the cores of who started it: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::CpuSet;
    use std::thread;

    #[test]
    fn a_thread_of_a_bound_one_has_all_cores() {
        let bound = thread::spawn(|| {
            let all = sched_getaffinity(None).expect("affinity");
            let first = (0..CpuSet::MAX_CPU).find(|&core| all.is_set(core));
            let mut one = CpuSet::new();
            one.set(first.expect("it runs somewhere"));
            sched_setaffinity(None, &one).expect("affinity");
            let inherits = || sched_getaffinity(None).expect("affinity");
            assert!(thread::spawn(inherits).join().expect("no panic") == one);
            let freed = thread::spawn(move || {
                as_usual();
                inherits()
            });
            assert!(freed.join().expect("no panic") == all);
        });
        bound.join().expect("no panic");
    }
}
