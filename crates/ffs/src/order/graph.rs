//! What may not reach the disk yet, and what is to be done when something has.
//!
//! Two primitives. A **guard** keeps the old bytes of a *place* on the disk until conditions hold.
//! A **task** is an action that becomes ready when conditions hold. A condition is that a block is
//! durable as it is now, or that the guard of a place is *shown*: its new bytes are durable.
//!
//! A block's life, as this module sees it: it is changed, and guards are made; [`Graph::copy`]
//! takes what a write of it would show, with the old bytes of each guard that is closed; the flush
//! behind the write calls [`Graph::flushed`], which lets guards open and tasks get ready. Nobody
//! copies a block between a change and the guards that belong to it.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::fault::{Fault, injected};

/// Where bytes are: a block of the disk, and the offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The block.
    pub block: u64,
    /// Bytes from its beginning.
    pub offset: u32,
}

/// A condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// The block is durable, as it is now.
    Block(u64),
    /// What this place holds now is durable.
    Place(Place),
}

/// What a guard keeps of its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// All bytes.
    Whole,
    /// Of a directory entry's eight bytes the inode's number and the kind. The lengths in between
    /// say where names are, and change with the entries beside it.
    Entry,
}

/// Guards and tasks, the latter with actions `A`.
pub struct Graph<A> {
    guards: BTreeMap<Place, Guard>,
    /// Where a guard is, by its number. Conditions of guards that are gone lead nowhere.
    places: FxHashMap<u64, Place>,
    tasks: FxHashMap<u64, Task<A>>,
    /// Who waits for the next copy of a block.
    waiting: FxHashMap<u64, Waiters>,
    /// Who waits for the flush behind a copy that was taken.
    in_flight: FxHashMap<u64, Waiters>,
    ready: Vec<A>,
    next: u64,
    rolled_back: u64,
}

struct Guard {
    id: u64,
    old: Old,
    form: Form,
    /// What it replaces is free: nothing of it was ever on disk.
    is_fresh: bool,
    unmet: usize,
    waiters: Waiters,
}

/// What the disk has at a place: mostly zeros, as it is free there.
enum Old {
    Zeros(usize),
    Bytes(Box<[u8]>),
}

/// As many as any place has that is free.
static ZEROS: [u8; 4096] = [0; 4096];

impl Old {
    fn new(bytes: &[u8]) -> Old {
        match ZEROS.get(..bytes.len()) {
            Some(zeros) if zeros == bytes => Old::Zeros(bytes.len()),
            _ => Old::Bytes(bytes.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Old::Zeros(len) => &ZEROS[..*len],
            Old::Bytes(bytes) => bytes,
        }
    }

    /// Bytes of DRAM beside its own.
    fn boxed(&self) -> usize {
        match self {
            Old::Zeros(_) => 0,
            Old::Bytes(bytes) => bytes.len(),
        }
    }
}

struct Task<A> {
    unmet: usize,
    action: A,
}

/// A guard or a task, by its number. The last bit says which.
#[derive(Debug, Clone, Copy)]
struct Waiter(u64);

enum Kind {
    Guard(u64),
    Task(u64),
}

impl Waiter {
    fn guard(id: u64) -> Waiter {
        Waiter(id << 1)
    }

    fn task(id: u64) -> Waiter {
        Waiter(id << 1 | 1)
    }

    fn kind(self) -> Kind {
        match self.0 & 1 {
            0 => Kind::Guard(self.0 >> 1),
            _ => Kind::Task(self.0 >> 1),
        }
    }
}

/// Who waits for something: mostly nobody, or one.
#[derive(Default)]
enum Waiters {
    #[default]
    None,
    One(Waiter),
    Many(Vec<Waiter>),
}

impl Waiters {
    fn push(&mut self, waiter: Waiter) {
        match self {
            Waiters::None => *self = Waiters::One(waiter),
            Waiters::One(first) => *self = Waiters::Many(vec![*first, waiter]),
            Waiters::Many(all) => all.push(waiter),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Waiters::None)
    }

    fn extend(&mut self, more: Waiters) {
        match self {
            Waiters::None => *self = more,
            _ => more.all().for_each(|waiter| self.push(waiter)),
        }
    }

    fn all(self) -> impl Iterator<Item = Waiter> {
        let (one, many) = match self {
            Waiters::None => (None, Vec::new()),
            Waiters::One(one) => (Some(one), Vec::new()),
            Waiters::Many(many) => (None, many),
        };
        one.into_iter().chain(many)
    }

    /// Bytes of DRAM beside its own.
    fn boxed(&self) -> usize {
        match self {
            Waiters::None | Waiters::One(_) => 0,
            Waiters::Many(many) => many.capacity() * size_of::<Waiter>(),
        }
    }
}

const _: () = assert!(size_of::<Waiters>() == 24, "there are many");
const _: () = assert!(size_of::<Old>() == 16, "there are many");

impl<A> Default for Graph<A> {
    fn default() -> Graph<A> {
        Graph {
            guards: BTreeMap::new(),
            places: FxHashMap::default(),
            tasks: FxHashMap::default(),
            waiting: FxHashMap::default(),
            in_flight: FxHashMap::default(),
            ready: Vec::new(),
            next: 0,
            rolled_back: 0,
        }
    }
}

/// What is to be known of blocks: whether one is to be written.
pub type IsDirty<'a> = &'a dyn Fn(u64) -> bool;

impl<A> Graph<A> {
    /// Guards and tasks, ready ones included.
    pub fn len(&self) -> usize {
        self.guards.len() + self.tasks.len() + self.ready.len()
    }

    /// Places that were rolled back in copies, since the mount.
    pub fn rolled_back(&self) -> u64 {
        self.rolled_back
    }

    /// Bytes that these take, and who waits for whom, without what maps have in reserve and what
    /// actions refer to.
    pub fn bytes(&self) -> usize {
        let guards = self.guards.values().map(|guard| {
            let (entry, place) = (size_of::<(Place, Guard)>(), size_of::<(u64, Place)>());
            entry + place + guard.old.boxed() + guard.waiters.boxed()
        });
        let tasks = self.tasks.len() * size_of::<(u64, Task<A>)>();
        let waiting = self.waiting.values().chain(self.in_flight.values());
        let waiting = waiting.map(|all| size_of::<(u64, Waiters)>() + all.boxed());
        let ready = self.ready.capacity() * size_of::<A>();
        guards.sum::<usize>() + tasks + waiting.sum::<usize>() + ready
    }

    /// The place is guarded, and its guard waits for something.
    pub fn is_closed(&self, place: Place) -> bool {
        self.guards.get(&place).is_some_and(|guard| guard.unmet > 0)
    }

    /// The place is guarded.
    pub fn is_guarded(&self, place: Place) -> bool {
        self.guards.contains_key(&place)
    }

    /// What the disk has at a place that is guarded.
    pub fn old(&self, place: Place) -> Option<&[u8]> {
        self.guards.get(&place).map(|guard| guard.old.bytes())
    }

    /// Something waits, and nothing is ready.
    pub fn is_waiting(&self) -> bool {
        self.ready.is_empty() && !(self.guards.is_empty() && self.tasks.is_empty())
    }

    /// All guards of a block would be shown: writing it needs no roll-back.
    pub fn is_open(&self, block: u64) -> bool {
        self.of_block(block).all(|(_, guard)| guard.unmet == 0)
    }

    /// Writing a block, with its closed guards rolled back, is what somebody waits for.
    pub fn is_awaited(&self, block: u64) -> bool {
        let awaited = |guard: &Guard| guard.unmet == 0 && !guard.waiters.is_empty();
        self.waiting.contains_key(&block) || self.of_block(block).any(|(_, guard)| awaited(guard))
    }

    /// The places of a block that are guarded.
    pub fn guarded(&self, block: u64) -> Vec<Place> {
        self.of_block(block).map(|(&place, _)| place).collect()
    }

    fn of_block(&self, block: u64) -> impl Iterator<Item = (&Place, &Guard)> {
        let at = |offset| Place { block, offset };
        self.guards.range(at(0)..=at(u32::MAX))
    }

    /// The bytes of a place that had no guard may be shown from when the conditions hold; `old` are
    /// those that may be shown until then.
    ///
    /// # Panics
    /// If it has a guard.
    pub fn guard(&mut self, place: Place, old: &[u8], form: Form, is_fresh: bool) {
        let id = self.id();
        let guard = Guard {
            id,
            old: Old::new(old),
            form,
            is_fresh,
            unmet: 0,
            waiters: Waiters::None,
        };
        self.places.insert(id, place);
        let before = self.guards.insert(place, guard);
        assert!(before.is_none(), "{place:?} has a guard");
    }

    /// The guarded bytes of a place have changed again (S1): the conditions of what they were
    /// before do not matter any more. Who waited for them waits for these. Says whether the place
    /// is free of its guard: it is as the disk has it, and nobody waits for it.
    pub fn change(&mut self, place: Place, new: &[u8]) -> bool {
        let id = self.id();
        let guard = self.guards.get_mut(&place).expect("a guarded place");
        self.places.remove(&guard.id);
        if guard.waiters.is_empty() && guard.shows_as(new) {
            self.guards.remove(&place);
            return true;
        }
        guard.unmet = 0;
        guard.id = id;
        self.places.insert(id, place);
        if injected(Fault::WaitersMet) {
            let waiters = std::mem::take(&mut guard.waiters);
            self.meet(waiters);
        }
        false
    }

    /// What a guarded place holds must not be shown before a condition holds.
    ///
    /// # Panics
    /// If the place has no guard.
    pub fn wait(&mut self, place: Place, on: On, is_dirty: IsDirty<'_>) {
        if on == On::Place(place) {
            return;
        }
        let id = self.guards[&place].id;
        if self.register(Waiter::guard(id), on, is_dirty) {
            let guard = self.guards.get_mut(&place).expect("it was there");
            guard.unmet += 1;
        }
    }

    /// Something is to be done when the conditions hold.
    pub fn task(&mut self, action: A, after: &[On], is_dirty: IsDirty<'_>) {
        let id = self.id();
        let registered =
            |graph: &mut Self, on: &On| graph.register(Waiter::task(id), *on, is_dirty);
        let unmet = after.iter().filter(|on| registered(self, on)).count();
        match unmet {
            0 => self.ready.push(action),
            _ => drop(self.tasks.insert(id, Task { unmet, action })),
        }
    }

    /// A place has no guard any more: what it led to is gone. Who waited for it need not.
    pub fn unguard(&mut self, place: Place) {
        if let Some(guard) = self.guards.remove(&place) {
            self.places.remove(&guard.id);
            self.meet(guard.waiters);
        }
    }

    /// Drops a guard that waits for nothing, and that nobody waits for.
    pub fn drop_idle(&mut self, place: Place) {
        let idle = |guard: &Guard| guard.unmet == 0 && guard.waiters.is_empty();
        if self.guards.get(&place).is_some_and(idle) {
            self.unguard(place);
        }
    }

    /// What the disk has in place of something of which nothing was ever on disk.
    pub fn fresh(&self, place: Place) -> Option<Box<[u8]>> {
        let guard = self.guards.get(&place)?;
        guard.is_fresh.then(|| guard.old.bytes().into())
    }

    /// A block is free: nobody cares what it holds.
    pub fn discard(&mut self, block: u64) {
        for place in self.guarded(block) {
            self.unguard(place);
        }
        let waiters = self.waiting.remove(&block).unwrap_or_default();
        self.meet(waiters);
    }

    /// Makes the copy of a block what may be written of it now (S2). Who waits for the block, and
    /// for guards that the copy shows, is told by [`Graph::flushed`]. Says whether all is shown.
    pub fn copy(&mut self, block: u64, copy: &mut [u8]) -> bool {
        let mut waiters = self.waiting.remove(&block).unwrap_or_default();
        let mut shows_all = true;
        for place in self.guarded(block) {
            let guard = &self.guards[&place];
            if guard.unmet > 0 {
                guard.roll_back(&mut copy[place.offset as usize..]);
                self.rolled_back += 1;
                shows_all = injected(Fault::RolledBackForgotten);
            } else {
                let guard = self.guards.remove(&place).expect("it was there");
                self.places.remove(&guard.id);
                waiters.extend(guard.waiters);
            }
        }
        if injected(Fault::ShownEarly) {
            self.meet(std::mem::take(&mut waiters));
        }
        self.in_flight.entry(block).or_default().extend(waiters);
        shows_all
    }

    /// All copies that were taken are durable (S4). Says whether anybody waited for that.
    pub fn flushed(&mut self) -> bool {
        let all = std::mem::take(&mut self.in_flight);
        let mut any = false;
        for waiters in all.into_values() {
            any |= !waiters.is_empty();
            self.meet(waiters);
        }
        any
    }

    /// Actions whose conditions hold.
    pub fn take_ready(&mut self) -> Vec<A> {
        std::mem::take(&mut self.ready)
    }

    /// Opens the oldest closed guard, whatever it waits for; false: there is none.
    pub fn force(&mut self) -> bool {
        let closed = self.guards.values_mut().filter(|guard| guard.unmet > 0);
        let Some(oldest) = closed.min_by_key(|guard| guard.id) else {
            return false;
        };
        oldest.unmet = 0;
        let id = self.next;
        self.next += 1;
        let before = std::mem::replace(&mut oldest.id, id);
        let place = self.places.remove(&before).expect("each guard has a place");
        self.places.insert(id, place);
        true
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Lets somebody wait, unless the condition holds.
    fn register(&mut self, waiter: Waiter, on: On, is_dirty: IsDirty<'_>) -> bool {
        let block = match on {
            On::Block(block) => block,
            On::Place(place) => match self.guards.get_mut(&place) {
                Some(guard) => {
                    guard.waiters.push(waiter);
                    return true;
                }
                None => place.block,
            },
        };
        if is_dirty(block) {
            self.waiting.entry(block).or_default().push(waiter);
        } else if let Some(waiters) = self.in_flight.get_mut(&block) {
            waiters.push(waiter);
        } else {
            return false;
        }
        true
    }

    fn meet(&mut self, waiters: Waiters) {
        for waiter in waiters.all() {
            match waiter.kind() {
                Kind::Guard(id) => {
                    if let Some(place) = self.places.get(&id) {
                        let guard = self.guards.get_mut(place).expect("a guard's place");
                        guard.unmet = guard.unmet.saturating_sub(1);
                    }
                }
                Kind::Task(id) => {
                    let task = self.tasks.get_mut(&id).expect("tasks wait to their end");
                    task.unmet -= 1;
                    if task.unmet == 0 {
                        let task = self.tasks.remove(&id).expect("it was there");
                        self.ready.push(task.action);
                    }
                }
            }
        }
    }
}

impl Guard {
    fn kept(&self) -> impl Iterator<Item = usize> {
        let form = self.form;
        (0..self.old.bytes().len()).filter(move |i| form == Form::Whole || !(4..7).contains(i))
    }

    fn roll_back(&self, bytes: &mut [u8]) {
        if injected(self.shown()) {
            return;
        }
        let old = self.old.bytes();
        for i in self.kept() {
            bytes[i] = old[i];
        }
    }

    /// The bug that does not roll it back.
    fn shown(&self) -> Fault {
        match self.form {
            Form::Entry => Fault::EntryShown,
            Form::Whole if self.old.bytes().len() == 4 => Fault::PointerShown,
            Form::Whole => Fault::InodeShown,
        }
    }

    /// The disk has the same at this place. Of a free entry the kind does not matter.
    fn shows_as(&self, new: &[u8]) -> bool {
        let old = self.old.bytes();
        match self.form {
            Form::Whole => *old == *new,
            Form::Entry if new[..4] == [0; 4] => old[..4] == [0; 4],
            Form::Entry => self.kept().all(|i| old[i] == new[i]),
        }
    }
}
