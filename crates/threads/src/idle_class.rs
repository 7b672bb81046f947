//! Serving threads are of the idle class, so that an answer leaves its client where it is.
//!
//! An answer wakes the client while the serving thread still runs on the core that the client has
//! just slept on. The scheduler looks for a core that is idle, takes another one, and the next
//! request crosses cores, which takes several times as long as the request. But a core on which
//! nobody runs except threads of the idle class (`SCHED_IDLE`) counts as idle. So threads that have
//! followed their client are of that class: the client stays, and runs at once.
//!
//! A thread of that class hardly runs where others want the core. So a guardian looks every
//! 2 ms. Where no request was taken meanwhile, perhaps because those who would take it or who
//! serve another one do not run, it gives all threads the usual class back. If requests are taken
//! at once then, that was so, and where it is so often, the class is left alone for a while, longer
//! each time. So what others cost is a few ticks, now and then, for a request or for who waits for
//! a lock that it has. Without requests the guardian sleeps, and all threads are of the usual
//! class.
//!
//! Entering before each answer and leaving with each request would save even these ticks. But it
//! takes two system calls for each request, which was as much as half a request.
//!
//! Who enters the class may leave it only as root, or with `RLIMIT_NICE` for it. That is tried
//! once, on a thread that ends then.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::thread::{Pid, gettid};

use crate::class::{Policy, policy, set_policy};

/// How long a request waits at most for threads of the idle class that do not run: twice this.
const TICK: Duration = Duration::from_millis(2);

/// A request that waits is taken in this time, once somebody can take it.
const AT_ONCE: Duration = Duration::from_micros(200);

/// Ticks without a request before the guardian sleeps.
const QUIET: u32 = 10;

/// If a request has waited for the guardian after so many of the latest 32 ticks, others want the
/// core. What our own threads take of it from time to time is less.
const LATE: u32 = 8;

/// Ticks in a row with requests after which earlier pauses are forgotten.
const WELL: u32 = 500;

/// How long the class is left alone, at first and at most.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The idle class as the threads of one mount use it.
#[derive(Default)]
pub struct IdleClass(Arc<Shared>);

#[derive(Default)]
struct Shared {
    members: Mutex<Vec<Arc<Member>>>,
    /// Requests that members have taken.
    taken: AtomicU64,
    /// The class is left alone.
    paused: AtomicBool,
    /// The guardian does not sleep.
    watched: AtomicBool,
    ended: AtomicBool,
    guardian: OnceLock<Thread>,
}

/// A serving thread that may enter the idle class.
struct Member {
    thread: Pid,
    /// It is in it, or about to be, and the guardian has not taken it out since.
    idle: AtomicBool,
    of: Arc<Shared>,
}

thread_local! {
    static MEMBER: RefCell<Option<Membership>> = const { RefCell::new(None) };
}

/// Ends with the thread, whose id may be another's then.
struct Membership(Arc<Member>);

impl Drop for Membership {
    fn drop(&mut self) {
        let mut members = self.0.of.members.lock();
        members.retain(|member| !Arc::ptr_eq(member, &self.0));
    }
}

impl Drop for IdleClass {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        if let Some(guardian) = self.0.guardian.get() {
            guardian.unpark();
        }
    }
}

impl IdleClass {
    /// From now on the calling thread enters the idle class by [`enter`], if it is permitted to.
    pub fn join(&self) {
        part();
        if !permitted() {
            return;
        }
        let member = Arc::new(Member {
            thread: gettid(),
            idle: AtomicBool::new(false),
            of: Arc::clone(&self.0),
        });
        self.0.members.lock().push(Arc::clone(&member));
        MEMBER.set(Some(Membership(member)));
    }
}

/// From now on the calling thread enters the idle class no more.
pub fn part() {
    leave();
    MEMBER.set(None);
}

/// The calling thread is of the usual class until it enters again. For who is about to start
/// threads, or to have the kernel start some.
pub fn leave() {
    MEMBER.with_borrow(|membership| {
        if let Some(Membership(member)) = membership
            && member.idle.load(Ordering::Relaxed)
        {
            member.leave();
        }
    });
}

/// The calling thread has taken a request.
pub fn took_request() {
    MEMBER.with_borrow(|membership| {
        if let Some(Membership(member)) = membership {
            // Relaxed: one more or less for who counts.
            member.of.taken.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// The calling thread is about to send an answer, and then to wait for the next request.
pub fn enter() {
    MEMBER.with_borrow(|membership| {
        if let Some(Membership(member)) = membership
            && !member.idle.load(Ordering::Relaxed)
            && !member.of.paused.load(Ordering::SeqCst)
        {
            member.enter();
        }
    });
}

impl Member {
    /// Nobody is in the class while the guardian sleeps or a pause lasts. It stops watching, or
    /// begins the pause, and then takes out all who are `idle`. We are that first, and look
    /// afterwards. In the one order of all this (`SeqCst`) either it finds us, or we see it.
    fn enter(&self) {
        self.idle.store(true, Ordering::SeqCst);
        if self.of.is_watched() {
            set_policy(None, Policy::IDLE);
            let taken_out = !self.idle.load(Ordering::SeqCst);
            if taken_out || self.of.paused.load(Ordering::SeqCst) || !self.of.is_watched() {
                self.leave();
            }
        }
    }

    fn leave(&self) {
        set_policy(None, Policy::USUAL);
        self.idle.store(false, Ordering::SeqCst);
    }
}

/// Whether the calling thread may be put into the idle class: it has the usual policy, and who
/// enters may leave.
fn permitted() -> bool {
    static CAN_LEAVE: OnceLock<bool> = OnceLock::new();
    let try_it = || {
        let both = || set_policy(None, Policy::IDLE) && set_policy(None, Policy::USUAL);
        let tried = thread::Builder::new().spawn(both);
        tried.is_ok_and(|thread| thread.join().unwrap_or(false))
    };
    policy() == Policy::USUAL && *CAN_LEAVE.get_or_init(try_it)
}

impl Shared {
    /// The guardian watches: it is called if it sleeps. False where there can be none.
    fn is_watched(self: &Arc<Self>) -> bool {
        if self.watched.load(Ordering::SeqCst) || self.watched.swap(true, Ordering::SeqCst) {
            return true;
        }
        if let Some(guardian) = self.guardian.get() {
            guardian.unpark();
            return true;
        }
        let shared = Arc::clone(self);
        let guardian = thread::Builder::new().name("guardian".to_owned());
        let guard = move || {
            crate::as_usual();
            // Before it first sleeps, which lets others look for one.
            let _ = shared.guardian.set(thread::current());
            shared.guard();
        };
        match guardian.spawn(guard) {
            Ok(_) => true,
            Err(error) => {
                log::debug!("answers are not sent in the idle class: {error}");
                self.watched.store(false, Ordering::SeqCst);
                false
            }
        }
    }

    fn guard(&self) {
        let mut watch = Watch::default();
        while !self.ended.load(Ordering::Acquire) {
            thread::sleep(TICK);
            match watch.tick(self.taken.load(Ordering::Relaxed)) {
                Look::Runs => {}
                Look::Stands { quiet } => {
                    if quiet {
                        self.watched.store(false, Ordering::SeqCst);
                    }
                    self.take_out();
                    if quiet {
                        thread::park();
                        continue;
                    }
                    thread::sleep(AT_ONCE);
                    if let Some(pause) = watch.taken_out(self.taken.load(Ordering::Relaxed)) {
                        self.pause(pause);
                    }
                }
            }
        }
        self.take_out();
    }

    /// Take all threads out of the class.
    fn take_out(&self) {
        for member in &*self.members.lock() {
            if member.idle.swap(false, Ordering::SeqCst) {
                set_policy(Some(member.thread), Policy::USUAL);
            }
        }
    }

    /// Leave the class alone for a while.
    fn pause(&self, pause: Duration) {
        log::debug!("others want the core: no answers in the idle class for {pause:?}");
        self.paused.store(true, Ordering::SeqCst);
        self.take_out();
        thread::park_timeout(pause);
        self.paused.store(false, Ordering::SeqCst);
    }
}

/// What the guardian has seen.
#[derive(Default)]
struct Watch {
    taken: u64,
    /// Ticks in a row without a request, and with.
    still: u32,
    running: u32,
    /// After which of the latest ticks a request had waited for the guardian: a bit each.
    late: u32,
    pauses: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// Requests are taken.
    Runs,
    /// None was: there is none, or nobody who takes it runs. `quiet`: so it has been for long.
    Stands { quiet: bool },
}

impl Watch {
    /// A tick has passed; so many requests were taken so far.
    fn tick(&mut self, taken: u64) -> Look {
        let stands = taken == self.taken;
        self.taken = taken;
        self.late <<= 1;
        if !stands {
            (self.still, self.running) = (0, self.running + 1);
            if self.running >= WELL {
                self.pauses = 0;
            }
            return Look::Runs;
        }
        (self.still, self.running) = (self.still + 1, 0);
        let quiet = self.still >= QUIET;
        if quiet {
            self.still = 0;
        }
        Look::Stands { quiet }
    }

    /// All threads have had the usual class back for a moment; so many requests were taken so far.
    /// How long to leave the idle class alone, if so.
    fn taken_out(&mut self, taken: u64) -> Option<Duration> {
        if taken == self.taken {
            return None;
        }
        self.taken = taken;
        self.still = 0;
        self.late |= 1;
        if self.late.count_ones() < LATE {
            return None;
        }
        self.late = 0;
        self.pauses += 1;
        let factor = 1 << (self.pauses - 1).min(31);
        Some(PAUSE.saturating_mul(factor).min(PAUSE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Runs on a thread of its own, as a thread has one class and is a member of one mount.
    fn apart<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(run).join().expect("no panic"))
    }

    /// Waits until the calling thread has a policy.
    fn is_given(wanted: Policy) {
        let start = Instant::now();
        while policy() != wanted {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "nobody raises it"
            );
            thread::yield_now();
        }
    }

    #[test]
    fn a_thread_enters_after_it_has_joined_and_leaves_when_it_parts() {
        if !apart(permitted) {
            testing::skip!("needs CAP_SYS_NICE to leave the idle class");
        }
        apart(|| {
            let class = IdleClass::default();
            enter();
            assert_eq!(policy(), Policy::USUAL, "it has not joined");
            class.join();
            for n in 1..4 {
                enter();
                took_request();
                assert_eq!(class.0.taken.load(Ordering::Relaxed), n);
            }
            class.join();
            assert_eq!(policy(), Policy::USUAL, "it begins anew");
            enter();
            leave();
            assert_eq!(policy(), Policy::USUAL, "until it enters again");
            enter();
            part();
            assert_eq!(policy(), Policy::USUAL);
            enter();
            assert_eq!(policy(), Policy::USUAL);
        });
    }

    #[test]
    fn a_thread_stays_in_it_as_long_as_requests_are_taken() {
        if !apart(permitted) {
            testing::skip!("needs CAP_SYS_NICE to leave the idle class");
        }
        apart(|| {
            let class = IdleClass::default();
            class.join();
            // Where others hold this thread up it is right that it is taken out.
            let begin = Instant::now();
            let stays = || {
                enter();
                let start = Instant::now();
                while start.elapsed() < 5 * TICK {
                    took_request();
                }
                policy() == Policy::IDLE
            };
            while !stays() {
                assert!(begin.elapsed() < Duration::from_secs(60), "it never stays");
            }
        });
    }

    #[test]
    fn who_takes_no_request_is_given_the_usual_class() {
        if !apart(permitted) {
            testing::skip!("needs CAP_SYS_NICE to leave the idle class");
        }
        apart(|| {
            let class = IdleClass::default();
            class.join();
            for _ in 0..3 {
                enter();
                is_given(Policy::USUAL);
            }
            // After the guardian has gone to sleep, too.
            let start = Instant::now();
            while class.0.watched.load(Ordering::Relaxed) {
                assert!(
                    start.elapsed() < Duration::from_secs(20),
                    "it does not sleep"
                );
                thread::yield_now();
            }
            enter();
            is_given(Policy::USUAL);
            // That was the same one: it, this thread as a member, and the test have the class.
            assert_eq!(Arc::strong_count(&class.0), 3);
        });
    }

    #[test]
    fn a_pause_lets_nobody_in() {
        if !apart(permitted) {
            testing::skip!("needs CAP_SYS_NICE to leave the idle class");
        }
        apart(|| {
            let class = IdleClass::default();
            class.join();
            let shared = Arc::clone(&class.0);
            let pause = thread::spawn(move || shared.pause(Duration::from_secs(100)));
            while !class.0.paused.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            enter();
            assert_eq!(policy(), Policy::USUAL);
            pause.thread().unpark();
            pause.join().expect("no panic");
        });
    }

    #[test]
    fn the_end_of_a_mount_and_of_a_thread_leave_nobody_behind() {
        if !apart(permitted) {
            testing::skip!("needs CAP_SYS_NICE to leave the idle class");
        }
        let class = IdleClass::default();
        apart(|| {
            class.join();
            enter();
        });
        assert!(class.0.members.lock().is_empty(), "its id may be another's");
        apart(|| {
            class.join();
            enter();
            drop(class);
            is_given(Policy::USUAL);
        });
    }

    #[test]
    fn who_has_a_policy_of_its_own_keeps_it() {
        let kept = apart(|| {
            assert!(set_policy(None, Policy::BATCH));
            let class = IdleClass::default();
            class.join();
            enter();
            part();
            policy()
        });
        assert_eq!(kept, Policy::BATCH);
    }

    #[test]
    fn the_class_is_left_alone_where_requests_wait_for_the_guardian_often() {
        let mut watch = Watch::default();
        assert_eq!(watch.tick(5), Look::Runs);
        // Requests that wait for the guardian, each after so many ticks in which others did not.
        let mut taken = 5;
        let mut late = |well: u32| {
            for _ in 0..well {
                taken += 1;
                assert_eq!(watch.tick(taken), Look::Runs);
            }
            assert_eq!(watch.tick(taken), Look::Stands { quiet: false });
            assert_eq!(watch.taken_out(taken), None, "nobody waited");
            assert_eq!(watch.tick(taken), Look::Stands { quiet: false });
            taken += 1;
            watch.taken_out(taken)
        };
        let mut pause_after = |times: u32, well| (0..times).find_map(|_| late(well));
        assert_eq!(
            pause_after(100, u32::BITS / LATE),
            None,
            "that is not often"
        );
        assert_eq!(
            pause_after(1, u32::BITS),
            None,
            "what was before is forgotten"
        );
        assert_eq!(pause_after(LATE - 2, 0), None);
        assert_eq!(pause_after(1, 0), Some(PAUSE));
        assert_eq!(pause_after(LATE, 0), Some(2 * PAUSE));
        let longest = (0..40).filter_map(|_| pause_after(LATE, 0)).last();
        assert_eq!(longest, Some(PAUSE_MAX));
        // What goes well for long is trusted as it was at first.
        assert_eq!(pause_after(1, WELL), None);
        assert_eq!(pause_after(LATE - 1, 0), Some(PAUSE));
    }

    #[test]
    fn without_requests_the_guardian_sleeps() {
        let mut watch = Watch::default();
        let quiet = (0..QUIET).map(|_| watch.tick(0)).last();
        assert_eq!(quiet, Some(Look::Stands { quiet: true }));
        assert_eq!(
            watch.tick(0),
            Look::Stands { quiet: false },
            "it has been called"
        );
    }
}
