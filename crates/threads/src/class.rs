//! Scheduling policies of threads.

use rustix::thread::Pid;

/// One of the policies that have no priorities, or another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy(libc::c_int);

impl Policy {
    /// `SCHED_OTHER`: what threads have unless told otherwise.
    pub const USUAL: Policy = Policy(libc::SCHED_OTHER);
    /// `SCHED_IDLE`: runs where nobody else wants to.
    pub const IDLE: Policy = Policy(libc::SCHED_IDLE);
    /// `SCHED_BATCH`: as the usual one, for who does not mind to wait.
    pub const BATCH: Policy = Policy(libc::SCHED_BATCH);
}

/// Give a thread, or the calling one, one of these three policies. True if it has it now.
pub fn set_policy(thread: Option<Pid>, policy: Policy) -> bool {
    let none = libc::sched_param { sched_priority: 0 };
    let thread = Pid::as_raw(thread);
    // SAFETY: `none` is read during the call; 0 is the calling thread. A thread may have any
    // policy.
    unsafe { libc::sched_setscheduler(thread, policy.0, &raw const none) == 0 }
}

/// The calling thread's policy.
pub fn policy() -> Policy {
    // SAFETY: no pointers; 0 is the calling thread.
    Policy(unsafe { libc::sched_getscheduler(0) })
}
