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
//! Of itself the client would not stay there, as the answer wakes it while its core is busy with
//! sending that: see [`idle_class`].
//!
//! Nothing depends on it but speed. Where the client runs is read from `/proc`, and may be outdated
//! at once; where it is not to be had (another process namespace, `hidepid`), the threads stay
//! free.
//!
//! Looking must not wait. `/proc/PID/stat` does while PID is in `execve` (Linux 6.18, under
//! `exec_update_lock`), and there PID may wait for us, as files of this mount are closed. So a
//! thread is looked for at once only while it waits for the answer to a request that `execve` does
//! not make under that lock: until the answer it cannot begin one, nor can another thread of its
//! process get so far, as `execve` first waits for the others to end. Who makes other requests,
//! reads above all, is looked for by a [`Scout`]: a thread that may wait, as no request does for
//! it. It tells a few requests later.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use threads::idle_class::{self, IdleClass};
use threads::scout::{Core, Proc, Scout, Ticket, Tid};

use crate::monitor::Request;

/// The id of the thread that a request comes from.
pub type Client = Tid;

/// The kernel itself, or a thread of which nothing is to be known here.
pub const UNKNOWN: Client = 0;

/// The client does nothing but wait for the answer, and is not about to become another program: it
/// may be looked for at once.
/// Reads may be ahead of the client; FLUSH, RELEASE and SETATTR (of times) come from closing files.
/// Writing back is for the caller to tell, as [`UNKNOWN`].
fn waits(request: Request) -> bool {
    use Request::{Flush, Forget, Read, Release, ReleaseDir, SetAttr};
    !matches!(
        request,
        Flush | Forget | Read | Release | ReleaseDir | SetAttr
    )
}

/// Requests before the first look, and before the next one after something has changed.
const SOON: u32 = 8;

/// Requests between two looks when all stays as it is. So many cross cores, at most, after each
/// move, and such a request takes five times as long; a look, beside them, half as long as one.
const LATE: u32 = 32;

/// Requests between two looks while the scheduler decides.
const LATE_FREE: u32 = 512;

/// Requests in a row of another client than the one that is followed, before a look.
const STRANGE: u32 = 16;

/// Requests in which clients are found once that is due; then it is decided by what is known.
const LOOKING: u32 = 16;

/// Of these, the first in which a client may make one that it waits for. Then the scout is asked,
/// which costs more than to look.
const PATIENCE: u32 = 4;

/// The same as [`LOOKING`] while the scout is on its way: on a busy machine it needs some time.
const SCOUTING: u32 = 256;

/// Decisions in a row for another core each, before they stop for a while.
const MOVES: u32 = 4;

/// Clients that are told apart between two looks, the latest ones.
const CLIENTS: usize = 4;

/// A read of so many bytes is taken for one that the kernel does ahead: as far as it does so at
/// least, once a program reads on and on.
const READ_AHEAD: u32 = 128 << 10;

/// Without requests for so long, clients and cores are forgotten.
const PAUSE_NS: u64 = 20_000_000;

/// A request that comes so much later than they did at best, twice in a row, may have crossed
/// cores: it is time to look. Waking the other core takes twice as long.
const LATER_NS: u64 = 15_000;

/// Stands for no core: the scheduler decides.
const ANY: Core = Core::MAX;

/// Where the threads of one mount are to run. Shared by them.
pub struct Follower {
    core: AtomicU32,
    /// Leaf lock, held for some instructions or for a look. Who does not get it goes on without:
    /// others count enough.
    watch: Mutex<Watch>,
    idle_class: IdleClass,
}

impl Default for Follower {
    fn default() -> Follower {
        Follower {
            core: AtomicU32::new(ANY),
            watch: Mutex::default(),
            idle_class: IdleClass::default(),
        }
    }
}

impl Follower {
    /// A request of this client is about to be served by this thread: go where it is, if that is
    /// known to pay.
    pub fn serve(&self, client: Client, request: Request) {
        idle_class::took_request();
        if client == UNKNOWN {
            return;
        }
        if go_home() {
            return;
        }
        if let Some(mut watch) = self.watch.try_lock() {
            // Relaxed, here and below: a hint, ordered with nothing.
            if let Some(core) = watch.see(client, waits(request)) {
                self.core.store(core, Ordering::Relaxed);
            }
        }
        self.go(self.core.load(Ordering::Relaxed));
    }

    /// Whom to serve a read for: nobody that can be followed, if the kernel reads ahead.
    pub fn reader(&self, client: Client, bytes: u32) -> Client {
        if bytes < READ_AHEAD {
            return client;
        }
        if leave_home() {
            return UNKNOWN;
        }
        if self.core.swap(ANY, Ordering::Relaxed) != ANY {
            self.watch.lock().tally.forget();
        }
        self.go(ANY);
        UNKNOWN
    }

    /// This thread goes to a core, if it is elsewhere.
    fn go(&self, core: Core) {
        go(core, &self.idle_class);
    }
}

fn go(core: Core, class: &IdleClass) {
    match PLACE.with_borrow_mut(|place| place.go(core)) {
        Some(true) => class.join(),
        Some(false) => idle_class::part(),
        None => {}
    }
}

/// The calling thread follows nobody: it gets its requests from one core. There it is, if it may
/// run there, but for what the kernel reads ahead.
pub fn stay(core: Core, class: &Arc<IdleClass>) {
    HOME.set(Some((core, Arc::clone(class))));
    go(core, class);
}

/// False: it has none.
fn go_home() -> bool {
    HOME.with_borrow(|home| {
        let Some((core, class)) = home else {
            return false;
        };
        go(*core, class);
        true
    })
}

/// False: it has none.
fn leave_home() -> bool {
    HOME.with_borrow(|home| {
        let Some((_, class)) = home else {
            return false;
        };
        go(ANY, class);
        true
    })
}

/// Requests since the last decision, by client.
#[derive(Clone, Default)]
struct Tally {
    clients: [Seen; CLIENTS],
    /// The place of the client that is told apart next.
    next: usize,
    requests: u32,
    /// Requests before the clients are looked for.
    enough: u32,
    /// What was decided last.
    core: Core,
    /// Who made most of the requests from there.
    followed: Client,
    /// Requests in a row of others.
    strange: u32,
    /// Decisions in a row that each found another core.
    moves: u32,
    last_ns: u64,
    /// The least time between two requests.
    best_ns: u64,
    /// Requests in a row that came later than that.
    later: u32,
    /// Whom the scout is looking for.
    asked: Option<(Client, Ticket)>,
}

/// A client.
#[derive(Clone, Copy, Default)]
struct Seen {
    client: Client,
    requests: u32,
    /// Where it was found, or [`ANY`] where it cannot be; none: it was not looked for yet.
    core: Option<Core>,
}

/// Finds clients; [`ANY`] if they cannot be found.
trait Look {
    /// Look for one that waits.
    fn now(&mut self, client: Client) -> Core;

    /// Have another one looked for, in place of who was asked for before.
    fn ask(&mut self, client: Client) -> Ticket;

    /// Where that one was found. None: it is not known yet.
    fn answer(&self, ticket: Ticket) -> Option<Core>;
}

impl Tally {
    fn new() -> Tally {
        Tally {
            enough: SOON,
            core: ANY,
            best_ns: u64::MAX,
            ..Tally::default()
        }
    }

    /// Count a request of a client that `waits` for it, or may not. Returns where to serve from now
    /// on, if that is decided with it.
    fn count(
        &mut self,
        client: Client,
        waits: bool,
        now_ns: u64,
        look: &mut impl Look,
    ) -> Option<Core> {
        let pause = now_ns.saturating_sub(self.last_ns) >= PAUSE_NS;
        if pause {
            self.forget();
        }
        let since_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
        self.requests += 1;
        self.best_ns = self.best_ns.min(since_ns);
        let later = self.core != ANY && since_ns - self.best_ns > LATER_NS;
        self.later = if later { self.later + 1 } else { 0 };
        if self.later == 2 {
            self.enough = self.enough.min(self.requests);
        }
        let strange = self.core != ANY && client != self.followed;
        self.strange = if strange { self.strange + 1 } else { 0 };
        if self.strange == STRANGE {
            // It has taken over: what was before does not count.
            self.clients = Default::default();
            (self.requests, self.enough) = (STRANGE, STRANGE);
            self.seen(client).requests = STRANGE - 1;
        }
        let due = self.requests >= self.enough;
        self.seen(client).requests += 1;
        if due {
            self.find(client, waits, look);
        }
        let all = self.clients.iter();
        let found: u32 = all.filter_map(|of| of.core.map(|_| of.requests)).sum();
        let looking = match self.asked {
            None => LOOKING,
            Some(_) => SCOUTING,
        };
        let overdue = self.requests >= self.enough + looking;
        match due && (overdue || mostly(found, self.requests)) {
            true => Some(self.decide()),
            false => pause.then_some(ANY),
        }
    }

    /// Where this client is, and the one that the scout was asked for, if that can be known now.
    fn find(&mut self, client: Client, waits: bool, look: &mut impl Look) {
        if let Some((of, ticket)) = self.asked
            && let Some(core) = look.answer(ticket)
        {
            self.asked = None;
            let found = self.clients.iter_mut().find(|seen| seen.client == of);
            if let Some(seen) = found {
                seen.core.get_or_insert(core);
            }
        }
        let impatient = self.requests >= self.enough + PATIENCE;
        let (is_free, all) = (self.asked.is_none(), self.requests);
        let seen = self.seen(client);
        if seen.core.is_some() {
            return;
        }
        if waits {
            seen.core = Some(look.now(client));
        } else if impatient && is_free && mostly(seen.requests, all) {
            // Several that read are better left to the scheduler, even if they are on one core at
            // the moment: the others of them can run while one waits for the medium.
            self.asked = Some((client, look.ask(client)));
        }
    }

    fn seen(&mut self, client: Client) -> &mut Seen {
        let known = self.clients.iter().position(|of| of.client == client);
        let place = known.unwrap_or_else(|| {
            let place = self.next;
            self.next = (place + 1) % CLIENTS;
            self.clients[place] = Seen {
                client,
                ..Seen::default()
            };
            place
        });
        &mut self.clients[place]
    }

    /// Begin anew.
    fn forget(&mut self) {
        *self = Tally::new();
    }

    /// Where to serve from now on.
    fn decide(&mut self) -> Core {
        let (core, followed) = self.home().unwrap_or((ANY, UNKNOWN));
        let moves = match core {
            ANY => 0,
            // What was before the pause does not count.
            _ if self.core == ANY => 0,
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
            last_ns: self.last_ns,
            ..Tally::new()
        };
        core
    }

    /// The core that most requests come from, nearly all, and the client that most of those are of.
    fn home(&self) -> Option<(Core, Client)> {
        let located = || self.clients.iter().filter_map(|of| Some((of.core?, of)));
        let of_core = |core| -> u32 {
            let there = located().filter(|at| at.0 == core);
            there.map(|at| at.1.requests).sum()
        };
        let (core, of) = located()
            .filter(|at| at.0 != ANY)
            .max_by_key(|at| (of_core(at.0), at.1.requests))?;
        mostly(of_core(core), self.requests).then_some((core, of.client))
    }
}

/// So many that the others do not matter.
fn mostly(some: u32, all: u32) -> bool {
    4 * some >= 3 * all
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
    /// Where the thread stays, if it follows nobody.
    static HOME: RefCell<Option<(Core, Arc<IdleClass>)>> = const { RefCell::new(None) };
    static PLACE: RefCell<Place> = RefCell::default();
}

impl Place {
    /// Returns whether the thread is bound to that core now; none: as it was before.
    fn go(&mut self, core: Core) -> Option<bool> {
        if self.core == Some(core) {
            return None;
        }
        self.core = Some(core);
        let bound = self.bind(core);
        if let Err(error) = &bound {
            log::debug!("a serving thread stays where it is: {error}");
        }
        bound.ok()
    }

    /// Returns whether it is bound to that core now.
    fn bind(&mut self, core: Core) -> io::Result<bool> {
        let now = sched_getaffinity(None)?;
        if self.given != Some(now) {
            // Somebody else has said where this thread may run, before or since.
            if now.count() <= 1 {
                return Ok(false);
            }
            self.allowed = Some(now);
        }
        let Some(allowed) = self.allowed else {
            return Ok(false);
        };
        let core = core as usize;
        let bound = core < CpuSet::MAX_CPU && allowed.is_set(core);
        let wanted = if bound { only(core) } else { allowed };
        if wanted != now {
            sched_setaffinity(None, &wanted)?;
            self.given = Some(wanted);
        }
        Ok(bound)
    }
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}

/// Nanoseconds of a clock that does not jump.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Counts requests, and looks where their clients run.
struct Watch {
    tally: Tally,
    eyes: Eyes,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            tally: Tally::new(),
            eyes: Eyes::default(),
        }
    }
}

impl Watch {
    fn see(&mut self, client: Client, waits: bool) -> Option<Core> {
        self.tally.count(client, waits, now_ns(), &mut self.eyes)
    }
}

/// Those of the serving threads, and one that may wait.
#[derive(Default)]
struct Eyes {
    proc: Proc,
    scout: Scout,
}

impl Look for Eyes {
    fn now(&mut self, client: Client) -> Core {
        self.proc.core_of(client).unwrap_or(ANY)
    }

    fn ask(&mut self, client: Client) -> Ticket {
        self.scout.ask(client)
    }

    fn answer(&self, ticket: Ticket) -> Option<Core> {
        let found = self.scout.answer(ticket)?;
        Some(found.unwrap_or(ANY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Finds clients where the function says. The scout answers to whoever asks so many times.
    struct At<F> {
        core_of: F,
        needs: u32,
        asked: Vec<Client>,
        looks: Cell<u32>,
    }

    impl<F: Fn(Client) -> Core> Look for At<F> {
        fn now(&mut self, client: Client) -> Core {
            (self.core_of)(client)
        }

        fn ask(&mut self, client: Client) -> Ticket {
            self.asked.push(client);
            self.looks.set(0);
            Ticket::default()
        }

        fn answer(&self, _: Ticket) -> Option<Core> {
            self.looks.set(self.looks.get() + 1);
            let client = *self.asked.last().expect("it was asked");
            (self.looks.get() >= self.needs).then(|| (self.core_of)(client))
        }
    }

    fn at<F: Fn(Client) -> Core>(core_of: F) -> At<F> {
        At {
            core_of,
            needs: 3,
            asked: Vec::new(),
            looks: Cell::default(),
        }
    }

    /// Requests of clients, 10 us apart, that wait for their answers; returns what is said
    /// last, if anything.
    fn requests(
        tally: &mut Tally,
        clients: impl IntoIterator<Item = Client>,
        core_of: impl Fn(Client) -> Core,
    ) -> Option<Core> {
        let mut look = at(core_of);
        let said = all(tally, clients, true, &mut look);
        assert_eq!(look.asked, [], "there is no need for a scout");
        said
    }

    /// The same of clients that may not wait.
    fn reads(
        tally: &mut Tally,
        clients: impl IntoIterator<Item = Client>,
        look: &mut impl Look,
    ) -> Option<Core> {
        all(tally, clients, false, look)
    }

    fn all(
        tally: &mut Tally,
        clients: impl IntoIterator<Item = Client>,
        wait: bool,
        look: &mut impl Look,
    ) -> Option<Core> {
        let mut said = None;
        for client in clients {
            let now = tally.last_ns + 10_000;
            said = tally.count(client, wait, now, look).or(said);
        }
        said
    }

    fn one(client: Client, count: u32) -> impl Iterator<Item = Client> {
        (0..count).map(move |_| client)
    }

    /// For [`requests`]: each client runs on the core of its number.
    fn own(client: Client) -> Core {
        client
    }

    #[test]
    fn a_client_is_followed_soon_and_to_where_it_moves() {
        let mut tally = Tally::new();
        assert_eq!(requests(&mut tally, one(7, SOON - 1), |_| 3), None);
        assert_eq!(requests(&mut tally, one(7, 1), |_| 3), Some(3));
        assert_eq!(requests(&mut tally, one(7, 5000), |_| 3), Some(3));
        assert_eq!(requests(&mut tally, one(7, LATE), |_| 1), Some(1));
    }

    #[test]
    fn looks_become_rare_when_all_stays_as_it_is() {
        let (mut tally, looks) = (Tally::new(), Cell::new(0));
        let count = |_| {
            looks.set(looks.get() + 1);
            3
        };
        requests(&mut tally, one(7, 100 * LATE), count);
        assert!((100..110).contains(&looks.get()), "{}", looks.get());
    }

    #[test]
    fn clients_on_different_cores_are_left_to_the_scheduler_and_on_the_same_followed() {
        let two = || (0..1000).map(|i| 1 + i % 2);
        let mut tally = Tally::new();
        assert_eq!(requests(&mut tally, two(), own), Some(ANY));
        assert_eq!(requests(&mut tally, two(), |_| 5), Some(5));
        // When the second comes to one that is followed, too.
        assert_eq!(requests(&mut tally, two(), own), Some(ANY));
        // One that asks for little beside it does not count.
        let mostly = (0..1000).map(|i| if i % 8 == 0 { 1 } else { 2 });
        assert_eq!(requests(&mut tally, mostly, own), Some(2));
    }

    #[test]
    fn a_client_that_takes_over_is_followed_at_once() {
        let mut tally = Tally::new();
        requests(&mut tally, one(1, 1000), own);
        assert_eq!(requests(&mut tally, one(2, STRANGE - 1), own), None);
        assert_eq!(requests(&mut tally, one(2, 1), own), Some(2));
    }

    #[test]
    fn who_moves_all_the_time_or_cannot_be_found_is_left_to_the_scheduler() {
        let (mut tally, core) = (Tally::new(), Cell::new(0));
        let moves = |_| {
            core.set(core.get() + 1);
            core.get()
        };
        let before_it_stops = SOON * (MOVES + 2);
        let said = requests(&mut tally, one(7, before_it_stops), moves);
        assert_eq!(said, Some(ANY));
        assert_eq!(requests(&mut tally, one(7, LATE), moves), None, "for long");
        let said = requests(&mut tally, one(7, LATE_FREE), |_| 3);
        assert_eq!(said, Some(3), "and not for ever");
        let mut tally = Tally::new();
        assert_eq!(requests(&mut tally, one(7, 1000), |_| ANY), Some(ANY));
    }

    #[test]
    fn requests_that_come_late_are_looked_after() {
        let mut tally = Tally::new();
        requests(&mut tally, one(7, 1000), |_| 3);
        requests(&mut tally, one(7, 4), |_| 3);
        let mut late = |core| {
            let now = tally.last_ns + 10_000 + 2 * LATER_NS;
            tally.count(7, true, now, &mut at(|_| core))
        };
        assert_eq!(late(1), None, "one may have a reason of its own");
        assert_eq!(late(1), Some(1));
        // Who takes longer all the time is looked for as rarely as others.
        assert_eq!((0..SOON - 1).find_map(|_| late(1)), None);
    }

    #[test]
    fn a_pause_forgets() {
        let mut tally = Tally::new();
        requests(&mut tally, one(7, 1000), |_| 3);
        let later = tally.last_ns + PAUSE_NS;
        assert_eq!(tally.count(7, true, later, &mut at(|_| 3)), Some(ANY));
        let soon = requests(&mut tally, one(7, SOON - 2), |_| 3);
        assert_eq!(soon, None);
    }

    #[test]
    fn who_only_reads_is_looked_for_by_the_scout_and_followed() {
        let (mut tally, mut scout) = (Tally::new(), at(|_| 3));
        let until_asked = SOON + PATIENCE;
        let said = reads(&mut tally, one(7, until_asked), &mut scout);
        assert_eq!((said, &scout.asked[..]), (None, &[7][..]));
        assert_eq!(reads(&mut tally, one(7, 2), &mut scout), None);
        assert_eq!(reads(&mut tally, one(7, 1), &mut scout), Some(3));
        assert_eq!(reads(&mut tally, one(7, 5000), &mut scout), Some(3));
        let mut elsewhere = at(|_| 1);
        let soon = LATE + LOOKING;
        assert_eq!(reads(&mut tally, one(7, soon), &mut elsewhere), Some(1));
        for closes in [Request::Flush, Request::SetAttr, Request::Read] {
            assert!(!waits(closes));
        }
    }

    #[test]
    fn who_waits_now_and_then_needs_no_scout() {
        let (mut tally, mut look) = (Tally::new(), at(|_| 3));
        for _ in 0..1000 {
            reads(&mut tally, one(7, PATIENCE), &mut look);
            requests(&mut tally, one(7, 1), |_| 3);
        }
        assert_eq!((&look.asked[..], tally.core), (&[][..], 3));
    }

    #[test]
    fn several_readers_are_left_to_the_scheduler() {
        let two = || (0..1000).map(|i| 1 + i % 2);
        let (mut tally, mut look) = (Tally::new(), at(|_| 5));
        assert_eq!(reads(&mut tally, two(), &mut look), Some(ANY));
        assert_eq!(look.asked, []);
        // When the second comes to one that is followed, too.
        assert_eq!(reads(&mut tally, one(1, 1000), &mut look), Some(5));
        assert_eq!(reads(&mut tally, two(), &mut look), Some(ANY));
        // One that reads little beside it does not count.
        let mostly = (0..1000).map(|i| if i % 8 == 0 { 1 } else { 2 });
        assert_eq!(reads(&mut tally, mostly, &mut look), Some(5));
    }

    #[test]
    fn a_scout_that_does_not_come_back_holds_nobody_up() {
        let (mut tally, mut scout) = (Tally::new(), at(|_| 3));
        scout.needs = u32::MAX;
        let said = reads(&mut tally, one(7, SOON + SCOUTING - 1), &mut scout);
        assert_eq!(said, None);
        assert_eq!(reads(&mut tally, one(7, 1), &mut scout), Some(ANY));
        // Who waits is found meanwhile.
        reads(&mut tally, one(7, 1000), &mut scout);
        assert_eq!(requests(&mut tally, one(8, 1000), own), Some(8));
        // When it is back, all is as before.
        scout.needs = 1;
        assert_eq!(reads(&mut tally, one(7, 1000), &mut scout), Some(3));
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
}
