//! The serving threads run where their client runs.
//!
//! Waking a thread that sleeps on another core takes several times as long as a request does, and
//! the scheduler, which likes idle cores, does it all the time: a client and the thread that serves
//! it never run at once, so each finds the other's core idle. So the threads look now and then
//! where their clients run, and bind themselves to that core. They let go, and the scheduler
//! decides as it would without all this,
//!
//! - when clients on different cores share the requests: whichever core the threads were bound to,
//!   it would be the wrong one half of the time;
//! - after a pause: the core may have been given to others;
//! - when the kernel reads ahead: the client goes on meanwhile, so that a second core is of use.
//!
//! Nothing depends on it but speed. Where the client runs is read from `/proc`, and may be outdated
//! at once; where it is not to be had (another process namespace, `hidepid`), the threads stay
//! free.
//!
//! A thread of its own reads `/proc`, never one that serves: the read waits while the client is in
//! `execve`, and there the client may wait for us, as it gives back files of this mount that its old
//! image had mapped.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The id of the thread that a request comes from.
pub type Client = u32;

/// The kernel itself, or a thread of which nothing is to be known here.
pub const UNKNOWN: Client = 0;

/// A processor's number.
type Core = u32;

/// Requests before the first look, and before the next one after something has changed.
const SOON: u32 = 8;

/// Requests between two looks when all stays as it is. So many cross cores, at most, after each
/// move, and such a request takes five times as long; a look, beside them, half as long as one.
const LATE: u32 = 32;

/// Requests between two looks while the scheduler decides.
const LATE_FREE: u32 = 512;

/// Requests in a row of another client than the one that is followed, before a look.
const STRANGE: u32 = 16;

/// Looks in a row that find another core each, before they stop for a while.
const MOVES: u32 = 4;

/// Clients that are told apart between two looks, the latest ones.
const CLIENTS: usize = 4;

/// A read of so many bytes is taken for one that the kernel does ahead: as far as it does so at
/// least, once a program reads on and on.
const READ_AHEAD: u32 = 128 << 10;

/// Without requests for so long, clients and cores are forgotten: ms.
const PAUSE_MS: u64 = 20;

/// Stands for no core: the scheduler decides.
const ANY: Core = Core::MAX;

/// Where the threads of one mount are to run. Shared by them.
pub struct Follower {
    home: Arc<Home>,
    /// To the thread that looks: at most one look is under way.
    looks: SyncSender<[Client; CLIENTS]>,
}

/// What the threads of a mount and the one that looks share.
struct Home {
    core: AtomicU32,
    /// Leaf lock, held for some instructions. Who does not get it goes on without: others count
    /// enough.
    tally: Mutex<Tally>,
}

impl Default for Follower {
    /// Starts the thread that looks, on any core that the caller may use.
    fn default() -> Follower {
        let home = Arc::new(Home {
            core: AtomicU32::new(ANY),
            tally: Mutex::default(),
        });
        let (looks, wanted) = sync_channel(1);
        let watcher = {
            let home = home.clone();
            std::thread::Builder::new()
                .name("follow".to_owned())
                .spawn(move || home.watch(&wanted))
        };
        if let Err(error) = watcher {
            log::debug!("the scheduler decides where requests are served: {error}");
        }
        Follower { home, looks }
    }
}

impl Home {
    /// Looks for the clients of each message, until the mount is gone.
    fn watch(&self, wanted: &Receiver<[Client; CLIENTS]>) {
        let mut watch = Watch::default();
        for clients in wanted {
            let found = clients.map(|client| {
                let known = client != UNKNOWN;
                (client, known.then(|| watch.core_of(client)).flatten())
            });
            let core_of = |client| found.iter().find(|of| of.0 == client)?.1;
            let core = self.tally.lock().look(core_of);
            // Relaxed: a hint, ordered with nothing.
            self.core.store(core, Ordering::Relaxed);
        }
    }
}

impl Follower {
    /// A request of this client is about to be served by this thread: go where it is, if that is
    /// known to pay.
    pub fn serve(&self, client: Client) {
        if client == UNKNOWN {
            return;
        }
        let home = &*self.home;
        if let Some(mut tally) = home.tally.try_lock() {
            match tally.count(client, now_ms()) {
                Some(Step::LetGo) => home.core.store(ANY, Ordering::Relaxed),
                // An error: it has ended, and nobody is followed.
                Some(Step::Look) => drop(self.looks.try_send(tally.clients.map(|known| known.0))),
                None => {}
            }
        }
        PLACE.with_borrow_mut(|place| place.go(home.core.load(Ordering::Relaxed)));
    }

    /// Whom to serve a read for: nobody that can be followed, if the kernel reads ahead.
    pub fn reader(&self, client: Client, bytes: u32) -> Client {
        if bytes < READ_AHEAD {
            return client;
        }
        if self.home.core.swap(ANY, Ordering::Relaxed) != ANY {
            self.home.tally.lock().forget();
        }
        PLACE.with_borrow_mut(|place| place.go(ANY));
        UNKNOWN
    }
}

/// What a request that was counted makes due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The scheduler decides again.
    LetGo,
    /// A look where the clients are.
    Look,
}

/// Requests since the last look, by client.
#[derive(Clone)]
struct Tally {
    clients: [(Client, u32); CLIENTS],
    /// The place of the client that is told apart next.
    next: usize,
    requests: u32,
    /// Requests before the next look.
    enough: u32,
    /// What the last look said.
    core: Core,
    /// Who made most of the requests from there.
    followed: Client,
    /// Requests in a row of others.
    strange: u32,
    /// Looks in a row that each found another core.
    moves: u32,
    /// A look is under way.
    looking: bool,
    last_ms: u64,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            clients: [(0, 0); CLIENTS],
            next: 0,
            requests: 0,
            enough: SOON,
            core: ANY,
            followed: 0,
            strange: 0,
            moves: 0,
            looking: false,
            last_ms: 0,
        }
    }
}

impl Tally {
    /// Count a request. A look is due after enough of them, letting go after a pause, and when a
    /// look takes so long that nobody knows where its clients are by now.
    fn count(&mut self, client: Client, now_ms: u64) -> Option<Step> {
        let pause = now_ms.saturating_sub(self.last_ms) >= PAUSE_MS;
        if pause {
            self.forget();
        }
        self.last_ms = now_ms;
        self.requests += 1;
        match self.clients.iter_mut().find(|known| known.0 == client) {
            Some(known) => known.1 += 1,
            None => {
                self.clients[self.next] = (client, 1);
                self.next = (self.next + 1) % CLIENTS;
            }
        }
        let strange = self.core != ANY && client != self.followed;
        self.strange = if strange { self.strange + 1 } else { 0 };
        if self.looking {
            return (pause || self.requests == LATE_FREE).then_some(Step::LetGo);
        }
        if self.strange == STRANGE {
            // It has taken over: what was before does not count.
            (self.clients, self.requests) = ([(0, 0); CLIENTS], STRANGE);
            self.clients[0] = (client, STRANGE);
        } else if self.requests < self.enough {
            return pause.then_some(Step::LetGo);
        }
        self.looking = true;
        Some(Step::Look)
    }

    /// Begin anew.
    fn forget(&mut self) {
        *self = Tally {
            looking: self.looking,
            ..Tally::default()
        };
    }

    /// Where to serve from now on.
    fn look(&mut self, core_of: impl FnMut(Client) -> Option<Core>) -> Core {
        let (core, followed) = self.home(core_of).unwrap_or((ANY, 0));
        let moves = match core {
            ANY => 0,
            same if same == self.core => 0,
            _ => self.moves + 1,
        };
        // Who is never found twice in one place is better left to the scheduler.
        let restless = moves > MOVES;
        let core = if restless { ANY } else { core };
        let enough = match core {
            _ if restless => LATE_FREE,
            ANY if self.core == ANY => LATE_FREE.min(2 * self.enough),
            same if same == self.core => LATE.min(2 * self.enough),
            _ => SOON,
        };
        *self = Tally {
            core,
            followed,
            enough,
            moves,
            last_ms: self.last_ms,
            ..Tally::default()
        };
        core
    }

    /// The core that most requests come from, nearly all, and the client that most of those are of.
    fn home(&self, mut core_of: impl FnMut(Client) -> Option<Core>) -> Option<(Core, Client)> {
        let mut located = [(ANY, 0, 0); CLIENTS];
        for (at, &(client, requests)) in located.iter_mut().zip(&self.clients) {
            if let Some(core) = (client != UNKNOWN).then(|| core_of(client)).flatten() {
                *at = (core, client, requests);
            }
        }
        let of_core = |core| -> u32 {
            let there = located.iter().filter(|at| at.0 == core);
            there.map(|at| at.2).sum()
        };
        let &(core, client, _) = located
            .iter()
            .filter(|at| at.0 != ANY)
            .max_by_key(|at| (of_core(at.0), at.2))?;
        (4 * of_core(core) >= 3 * self.requests).then_some((core, client))
    }
}

/// Where a serving thread may run.
#[derive(Default)]
struct Place {
    /// Where it was told to go last.
    core: Option<Core>,
    /// What it may do when it is not bound.
    allowed: Option<CpuSet>,
    /// What it was given by this module.
    given: Option<CpuSet>,
}

thread_local! {
    static PLACE: RefCell<Place> = RefCell::default();
}

impl Place {
    fn go(&mut self, core: Core) {
        if self.core != Some(core) {
            self.core = Some(core);
            if let Err(error) = self.bind(core) {
                log::debug!("a serving thread stays where it is: {error}");
            }
        }
    }

    fn bind(&mut self, core: Core) -> io::Result<()> {
        let now = sched_getaffinity(None)?;
        if self.given != Some(now) {
            // Somebody else has said where this thread may run, before or since.
            if now.count() <= 1 {
                return Ok(());
            }
            self.allowed = Some(now);
        }
        let Some(allowed) = self.allowed else {
            return Ok(());
        };
        let wanted = match core as usize {
            core if core < CpuSet::MAX_CPU && allowed.is_set(core) => only(core),
            _ => allowed,
        };
        if wanted != now {
            sched_setaffinity(None, &wanted)?;
            self.given = Some(wanted);
        }
        Ok(())
    }
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}

/// Milliseconds of a clock that does not jump; to the kernel's tick, which is the cheapest to read.
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

/// Looks where clients run, and keeps open what tells it of the last one.
#[derive(Default)]
struct Watch {
    client: Client,
    stat: Option<File>,
}

impl Watch {
    /// Where a thread runs, or ran last.
    fn core_of(&mut self, client: Client) -> Option<Core> {
        let mut text = [0; 1024];
        if client == self.client
            && let Some(len) = self
                .stat
                .as_ref()
                .and_then(|s| s.read_at(&mut text, 0).ok())
        {
            return processor(&text[..len]);
        }
        let stat = File::open(format!("/proc/{client}/stat")).ok()?;
        let len = stat.read_at(&mut text, 0).ok()?;
        (self.client, self.stat) = (client, Some(stat));
        processor(&text[..len])
    }
}

/// The processor in `/proc/PID/stat`: field 39. The second is the program's name in parentheses,
/// with any bytes in it.
fn processor(stat: &[u8]) -> Option<Core> {
    let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&stat[end_of_name + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(39 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of clients, one a millisecond, and a look at once when it is due; returns what is
    /// said last, if anything.
    fn requests(
        tally: &mut Tally,
        clients: impl IntoIterator<Item = Client>,
        core_of: impl Fn(Client) -> Option<Core>,
    ) -> Option<Core> {
        let mut said = None;
        for client in clients {
            let now = tally.last_ms + 1;
            said = match tally.count(client, now) {
                Some(Step::LetGo) => Some(ANY),
                Some(Step::Look) => Some(tally.look(&core_of)),
                None => said,
            };
        }
        said
    }

    fn one(client: Client, count: u32) -> impl Iterator<Item = Client> {
        (0..count).map(move |_| client)
    }

    #[test]
    fn a_client_is_followed_soon_and_to_where_it_moves() {
        let mut tally = Tally::default();
        assert_eq!(requests(&mut tally, one(7, SOON - 1), |_| Some(3)), None);
        assert_eq!(requests(&mut tally, one(7, 1), |_| Some(3)), Some(3));
        assert_eq!(requests(&mut tally, one(7, 5000), |_| Some(3)), Some(3));
        assert_eq!(requests(&mut tally, one(7, LATE), |_| Some(1)), Some(1));
    }

    #[test]
    fn looks_become_rare_when_all_stays_as_it_is() {
        let (mut tally, looks) = (Tally::default(), std::cell::Cell::new(0));
        let count = |_| {
            looks.set(looks.get() + 1);
            Some(3)
        };
        requests(&mut tally, one(7, 100 * LATE), count);
        assert!((100..110).contains(&looks.get()), "{}", looks.get());
    }

    #[test]
    fn clients_on_different_cores_are_left_to_the_scheduler_and_on_the_same_followed() {
        let two = || (0..1000).map(|i| 1 + i % 2);
        let mut tally = Tally::default();
        assert_eq!(requests(&mut tally, two(), Some), Some(ANY));
        assert_eq!(requests(&mut tally, two(), |_| Some(5)), Some(5));
        // When the second comes to one that is followed, too.
        assert_eq!(requests(&mut tally, two(), Some), Some(ANY));
        // One that asks for little beside it does not count.
        let mostly = (0..1000).map(|i| if i % 8 == 0 { 1 } else { 2 });
        assert_eq!(requests(&mut tally, mostly, Some), Some(2));
    }

    #[test]
    fn a_client_that_takes_over_is_followed_at_once() {
        let mut tally = Tally::default();
        requests(&mut tally, one(1, 1000), Some);
        assert_eq!(requests(&mut tally, one(2, STRANGE - 1), Some), None);
        assert_eq!(requests(&mut tally, one(2, 1), Some), Some(2));
    }

    #[test]
    fn who_moves_all_the_time_or_cannot_be_found_is_left_to_the_scheduler() {
        let (mut tally, core) = (Tally::default(), std::cell::Cell::new(0));
        let moves = |_| {
            core.set(core.get() + 1);
            Some(core.get())
        };
        let before_it_stops = SOON * (MOVES + 2);
        let said = requests(&mut tally, one(7, before_it_stops), moves);
        assert_eq!(said, Some(ANY));
        assert_eq!(requests(&mut tally, one(7, LATE), moves), None, "for long");
        let mut tally = Tally::default();
        assert_eq!(requests(&mut tally, one(7, 1000), |_| None), Some(ANY));
    }

    #[test]
    fn a_pause_forgets() {
        let mut tally = Tally::default();
        requests(&mut tally, one(7, 1000), |_| Some(3));
        let later = tally.last_ms + PAUSE_MS;
        assert_eq!(tally.count(7, later), Some(Step::LetGo));
        let soon = requests(&mut tally, one(7, SOON - 2), |_| Some(3));
        assert_eq!(soon, None);
    }

    #[test]
    fn a_look_that_does_not_end_lets_go_and_is_the_only_one() {
        let mut tally = Tally::default();
        requests(&mut tally, one(7, 1000), |_| Some(3));
        let steps: Vec<Step> = (0..10 * LATE_FREE)
            .filter_map(|_| tally.count(7, tally.last_ms + 1))
            .collect();
        assert_eq!(steps, [Step::Look, Step::LetGo]);
        assert_eq!(tally.look(|_| Some(2)), 2, "when it has ended");
    }

    #[test]
    fn a_thread_goes_where_it_may_and_back_and_bows_to_others() {
        let before = sched_getaffinity(None).expect("affinity");
        let now = || sched_getaffinity(None).expect("affinity");
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&c| before.is_set(c)).collect();
        let (first, last) = (cores[0], cores[cores.len() - 1]);
        let mut place = Place::default();
        place.go(first as Core);
        assert!(now() == only(first));
        place.go(ANY);
        assert!(now() == before);
        // A core that does not exist, or that it may not use.
        place.go(CpuSet::MAX_CPU as Core - 1);
        assert!(now() == before || cores.contains(&(CpuSet::MAX_CPU - 1)));
        // Somebody else binds it: so it stays.
        place.go(first as Core);
        sched_setaffinity(None, &only(last)).expect("affinity");
        place.go(ANY);
        assert!(now() == only(last));
        sched_setaffinity(None, &before).expect("affinity");
    }

    #[test]
    fn the_processor_is_found_behind_any_name() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let stat = format!("123 (a) b (c) S {}\n", fields.join(" "));
        assert_eq!(processor(stat.as_bytes()), Some(39));
        assert_eq!(processor(b"123 (cut"), None);
        assert_eq!(processor(b"123 (cut) S 1 2"), None);
        let myself = rustix::thread::gettid().as_raw_nonzero().get();
        let mut watch = Watch::default();
        for _ in 0..2 {
            assert!(watch.core_of(myself.cast_unsigned()).is_some());
        }
        assert_eq!(watch.core_of(Client::MAX), None);
    }
}
