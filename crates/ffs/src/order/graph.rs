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
//!
//! A task may be *wanted*: then [`Graph::next`] says which blocks to write for it.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use super::place::{Few, Kept, Waiter, Who};
pub use super::place::{On, Place};
use super::places::Places;
use crate::fault::{Fault, injected};
use crate::near::NearMap;

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
    guards: Places<Guard>,
    tasks: NearMap<u64, Task<A>>,
    /// Tasks that somebody waits for.
    wanted: Vec<(Urgency, u64)>,
    /// Who waits for the next copy of a block.
    waiting: NearMap<u64, Few<Waiter>>,
    /// Who waits for the flush behind a copy that was taken.
    in_flight: NearMap<u64, Few<Waiter>>,
    ready: Vec<A>,
    /// Guards of entries that are gone since the last flush.
    gone: Vec<Gone>,
    /// The number of the next guard, and of each that gets another value.
    next: u32,
    /// The number of the next task.
    next_task: u64,
    /// The time, in ticks.
    now: u32,
    rolled_back: u64,
    forced: u64,
}

struct Guard {
    id: u32,
    /// What the disk has, unless that is zeros.
    old: Option<Box<Bytes>>,
    len: u16,
    form: Form,
    /// What it replaces is free: nothing of it was ever on disk.
    is_fresh: bool,
    /// When what the disk has was changed for the first time.
    since: u32,
    unmet: u32,
    /// While any of them is unmet, all that it has waited for.
    conditions: Few<Kept>,
    waiters: Few<Waiter>,
}

/// The guard of an entry that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    /// Where the entry is.
    pub place: Place,
    /// The inode that the disk had there; 0: none.
    pub before: u32,
    /// The inode that has it for its name, 0: none; not known if its block is free.
    pub now: Option<u32>,
}

/// How soon something is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A caller waits.
    Now,
    /// It has been left alone for long enough.
    Due,
}

/// A number that no guard gets. Who waits by the number of a guard that is gone gets it.
const NEVER: u32 = u32::MAX;

/// As many as any place has that is free.
static ZEROS: [u8; 4096] = [0; 4096];

/// Bytes behind a pointer of one word.
struct Bytes(Box<[u8]>);

struct Task<A> {
    unmet: u32,
    /// All that it has waited for.
    conditions: Few<Kept>,
    action: A,
}

const _: () = assert!(size_of::<(u16, Guard)>() == 64, "there are many");

impl<A> Default for Graph<A> {
    fn default() -> Graph<A> {
        Graph {
            guards: Places::default(),
            tasks: NearMap::default(),
            wanted: Vec::new(),
            waiting: NearMap::default(),
            in_flight: NearMap::default(),
            ready: Vec::new(),
            gone: Vec::new(),
            next: 0,
            next_task: 0,
            now: 0,
            rolled_back: 0,
            forced: 0,
        }
    }
}

/// Blocks that may not be written before tasks have run, with the numbers of those.
pub type Held = NearMap<u64, Vec<u64>>;

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

    /// Guards that were opened by force, since the mount.
    pub fn forced(&self) -> u64 {
        self.forced
    }

    /// Bytes that these take, and who waits for whom, without what maps have in reserve and what
    /// actions refer to.
    pub fn bytes(&self) -> usize {
        let guards = self
            .guards
            .iter()
            .map(|(_, guard)| size_of::<(u16, Guard)>() + guard.boxed());
        let tasks = self.tasks.values();
        let tasks = tasks.map(|task| size_of::<(u64, Task<A>)>() + task.conditions.boxed());
        let waiting = self.waiting.values().chain(self.in_flight.values());
        let waiting = waiting.map(|all| size_of::<(u64, Few<Waiter>)>() + all.boxed());
        let ready = self.ready.capacity() * size_of::<A>();
        guards.sum::<usize>() + tasks.sum::<usize>() + waiting.sum::<usize>() + ready
    }

    /// The place is guarded, and its guard waits for something.
    pub fn is_closed(&self, place: Place) -> bool {
        self.guards.get(place).is_some_and(|guard| guard.unmet > 0)
    }

    /// The place is guarded.
    pub fn is_guarded(&self, place: Place) -> bool {
        self.guards.contains(place)
    }

    /// What the disk has at a place that is guarded.
    pub fn old(&self, place: Place) -> Option<&[u8]> {
        self.guards.get(place).map(|guard| guard.old())
    }

    /// Something waits, and nothing is ready.
    pub fn is_waiting(&self) -> bool {
        self.ready.is_empty() && !(self.guards.is_empty() && self.tasks.is_empty())
    }

    /// All guards of a block would be shown: writing it needs no roll-back.
    pub fn is_open(&self, block: u64) -> bool {
        self.guards
            .of_block(block)
            .all(|(_, guard)| guard.unmet == 0)
    }

    /// The places of a block that are guarded, in order.
    pub fn guarded(&self, block: u64) -> Vec<Place> {
        let places = self.guards.of_block(block).map(|(place, _)| place);
        let mut places: Vec<_> = places.collect();
        places.sort_unstable();
        places
    }

    /// The bytes of a place that had no guard may be shown from when the conditions hold; `old` are
    /// those that may be shown until then.
    ///
    /// # Panics
    /// If it has a guard.
    pub fn guard(&mut self, place: Place, old: &[u8], form: Form, is_fresh: bool) {
        let id = self.id();
        let is_zeros = *old == ZEROS[..old.len()];
        let guard = Guard {
            id,
            old: (!is_zeros).then(|| Box::new(Bytes(old.into()))),
            len: old.len() as u16,
            form,
            is_fresh,
            since: self.now,
            unmet: 0,
            conditions: Few::None,
            waiters: Few::None,
        };
        let before = self.guards.insert(place, guard);
        assert!(before.is_none(), "{place:?} has a guard");
    }

    /// The guarded bytes of a place have changed again (S1): the conditions of what they were
    /// before do not matter any more. Who waited for them waits for these. Says whether the place
    /// is free of its guard: it is as the disk has it, and nobody waits for it.
    pub fn change(&mut self, place: Place, new: &[u8]) -> bool {
        let id = self.id();
        let guard = self.guards.get_mut(place).expect("a guarded place");
        if guard.waiters.is_empty() && guard.shows_as(new) {
            self.remove(place, Some(new));
            return true;
        }
        guard.unmet = 0;
        guard.conditions = Few::None;
        guard.id = id;
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
        let id = self.guards.get(place).expect("a guarded place").id;
        if let Some(on) = self.register(Who::Guard(id, place).into(), on, is_dirty) {
            let guard = self.guards.get_mut(place).expect("it was there");
            guard.unmet += 1;
            guard.conditions.push(on.into());
        }
    }

    /// Something is to be done when the conditions hold. Its number, unless it is ready.
    pub fn task(&mut self, action: A, after: &[On], is_dirty: IsDirty<'_>) -> Option<u64> {
        let id = self.next_task;
        self.next_task += 1;
        let mut conditions = Few::None;
        for &on in after {
            if let Some(on) = self.register(Who::Task(id).into(), on, is_dirty) {
                conditions.push(on.into());
            }
        }
        let unmet = conditions.all().len() as u32;
        if unmet == 0 {
            self.ready.push(action);
            return None;
        }
        let task = Task {
            unmet,
            conditions,
            action,
        };
        self.tasks.insert(id, task);
        Some(id)
    }

    /// Somebody waits for the task of this number.
    pub fn want(&mut self, id: u64, urgency: Urgency) {
        self.wanted.push((urgency, id));
    }

    /// Whether there is a task of this number that has not run.
    pub fn has_task(&self, id: u64) -> bool {
        self.tasks.contains_key(&id)
    }

    /// Blocks to write for the tasks that are wanted so urgently: what they wait for, and what that
    /// waits for, as far as nothing is left to wait for.
    pub fn next(&self, urgency: Urgency, held: &Held) -> BTreeSet<u64> {
        let wanted = self.wanted.iter().filter(|&&(of, _)| of == urgency);
        let mut tasks: Vec<u64> = wanted.map(|&(_, id)| id).collect();
        let mut conditions: Vec<Kept> = Vec::new();
        let (mut seen, mut blocks) = (FxHashSet::default(), BTreeSet::new());
        loop {
            for id in tasks.drain(..) {
                let task = self.tasks.get(&id);
                conditions.extend(task.iter().flat_map(|task| task.conditions.all()));
            }
            let Some(condition) = conditions.pop() else {
                return blocks;
            };
            if !seen.insert(condition) {
                continue;
            }
            let block = match condition.into() {
                On::Block(block) if self.waiting.contains_key(&block) => block,
                On::Block(_) => continue,
                On::Place(place) => match self.guards.get(place) {
                    Some(guard) if guard.unmet == 0 => place.block(),
                    Some(guard) => {
                        conditions.extend(guard.conditions.all());
                        continue;
                    }
                    // It is durable, or in flight.
                    None => continue,
                },
            };
            match held.get(&block) {
                Some(more) => tasks.extend(more),
                None => drop(blocks.insert(block)),
            }
        }
    }

    /// Whether a place is guarded, and one of these waits for what it holds.
    pub fn leads_to(&self, from: impl Iterator<Item = On>, place: Place) -> bool {
        let is_awaited = |guard: &Guard| !guard.waiters.is_empty();
        if !self.guards.get(place).is_some_and(is_awaited) {
            return false;
        }
        let (mut seen, mut conditions) = (FxHashSet::default(), Vec::new());
        conditions.extend(from.map(Kept::from));
        while let Some(condition) = conditions.pop() {
            let On::Place(at) = condition.into() else {
                continue; // A block can always be written.
            };
            if at == place {
                return true;
            }
            let guard = self.guards.get(at).filter(|_| seen.insert(at));
            conditions.extend(guard.iter().flat_map(|guard| guard.conditions.all()));
        }
        false
    }

    /// The time is that of so many ticks.
    pub fn set_now(&mut self, now: u32) {
        self.now = now;
    }

    /// The places of which the disk has what they were before a time, in no order.
    pub fn since(&self, time: u32) -> Vec<On> {
        let before = |guard: &Guard| guard.since < time;
        let guards = self.guards.iter().filter(|(_, guard)| before(guard));
        guards.map(|(place, _)| On::Place(place)).collect()
    }

    /// A place has no guard any more: what it led to is gone. Who waited for it need not.
    pub fn unguard(&mut self, place: Place) {
        if let Some(guard) = self.remove(place, None) {
            self.meet(guard.waiters);
        }
    }

    /// Drops a guard that waits for nothing, and that nobody waits for. If it is of an entry, no
    /// inode has that for its name.
    pub fn drop_idle(&mut self, place: Place) {
        let idle = |guard: &Guard| guard.unmet == 0 && guard.waiters.is_empty();
        if self.guards.get(place).is_some_and(idle) {
            self.remove(place, Some(&[0; 4]));
        }
    }

    /// Takes a guard away, from a place that holds these bytes, if anybody cares.
    fn remove(&mut self, place: Place, bytes: Option<&[u8]>) -> Option<Guard> {
        let guard = self.guards.remove(place)?;
        if guard.form == Form::Entry {
            let (before, now) = (named(guard.old()), bytes.map(named));
            // Of a name that never was, and is not, nobody knows anything.
            if (before, now) != (0, Some(0)) {
                self.gone.push(Gone { place, before, now });
            }
        }
        Some(guard)
    }

    /// The guards of entries that are gone since this was asked last.
    pub fn take_gone(&mut self) -> Vec<Gone> {
        std::mem::take(&mut self.gone)
    }

    /// What the disk has in place of something of which nothing was ever on disk.
    pub fn fresh(&self, place: Place) -> Option<Box<[u8]>> {
        let guard = self.guards.get(place)?;
        guard.is_fresh.then(|| guard.old().into())
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
            let guard = self.guards.get(place).expect("it was there");
            if guard.unmet > 0 {
                guard.roll_back(&mut copy[place.offset()..]);
                self.rolled_back += 1;
                shows_all = injected(Fault::RolledBackForgotten);
            } else {
                let guard = self.remove(place, Some(&copy[place.offset()..]));
                waiters.extend(guard.expect("it was there").waiters);
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
        let id = self.id();
        let guards = self.guards.iter_mut().map(|(_, guard)| guard);
        let closed = guards.filter(|guard| guard.unmet > 0);
        let Some(oldest) = closed.min_by_key(|guard| guard.id) else {
            return false;
        };
        oldest.unmet = 0;
        oldest.conditions = Few::None;
        oldest.id = id;
        self.forced += 1;
        true
    }

    /// A number that no guard has, nor had as long as somebody waits by it; all others are older.
    fn id(&mut self) -> u32 {
        if self.next == NEVER {
            self.renumber();
        }
        self.next += 1;
        self.next - 1
    }

    /// Gives all guards new numbers, in the order of those that they have. There are far fewer than
    /// numbers, but a mount may last.
    fn renumber(&mut self) {
        let mut numbers: Vec<u32> = self.guards.iter().map(|(_, guard)| guard.id).collect();
        numbers.sort_unstable();
        let number_of = |id: u32| {
            numbers
                .binary_search(&id)
                .map_or(NEVER, |found| found as u32)
        };
        let mut ids: FxHashMap<Place, u32> = FxHashMap::default();
        for (place, guard) in self.guards.iter_mut() {
            ids.insert(place, guard.id);
            guard.id = number_of(guard.id);
        }
        let of_guards = self.guards.iter_mut().map(|(_, guard)| &mut guard.waiters);
        let of_blocks = self.waiting.values_mut().chain(self.in_flight.values_mut());
        for waiter in of_guards.chain(of_blocks).flat_map(Few::all_mut) {
            if let Who::Guard(id, place) = (*waiter).into() {
                let is_there = ids.get(&place) == Some(&id);
                let id = if is_there { number_of(id) } else { NEVER };
                *waiter = Who::Guard(id, place).into();
            }
        }
        self.next = numbers.len() as u32;
    }

    /// Lets somebody wait, unless the condition holds: for what.
    fn register(&mut self, waiter: Waiter, on: On, is_dirty: IsDirty<'_>) -> Option<On> {
        let block = match on {
            On::Block(block) => block,
            On::Place(place) => match self.guards.get_mut(place) {
                Some(guard) => {
                    guard.waiters.push(waiter);
                    return Some(on);
                }
                None => place.block(),
            },
        };
        if is_dirty(block) {
            self.waiting.entry(block).or_default().push(waiter);
        } else if let Some(waiters) = self.in_flight.get_mut(&block) {
            waiters.push(waiter);
        } else {
            return None;
        }
        Some(On::Block(block))
    }

    fn meet(&mut self, waiters: Few<Waiter>) {
        for &waiter in waiters.all() {
            let id = match waiter.into() {
                Who::Task(id) => id,
                Who::Guard(id, place) => {
                    let guard = self.guards.get_mut(place);
                    if let Some(guard) = guard.filter(|guard| guard.id == id) {
                        guard.unmet = guard.unmet.saturating_sub(1);
                        if guard.unmet == 0 {
                            guard.conditions = Few::None;
                        }
                    }
                    continue;
                }
            };
            let task = self.tasks.get_mut(&id).expect("tasks wait to their end");
            task.unmet -= 1;
            if task.unmet == 0 {
                let task = self.tasks.remove(&id).expect("it was there");
                self.wanted.retain(|&(_, wanted)| wanted != id);
                self.ready.push(task.action);
            }
        }
    }
}

/// The inode that the bytes of an entry name.
fn named(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))
}

impl Guard {
    fn old(&self) -> &[u8] {
        match &self.old {
            Some(bytes) => &bytes.0,
            None => &ZEROS[..self.len.into()],
        }
    }

    /// Bytes of DRAM beside its own.
    fn boxed(&self) -> usize {
        let old = self.old.as_ref();
        let old = old.map_or(0, |bytes| size_of::<Bytes>() + bytes.0.len());
        old + self.waiters.boxed() + self.conditions.boxed()
    }

    fn kept(&self) -> impl Iterator<Item = usize> {
        let form = self.form;
        (0..self.old().len()).filter(move |i| form == Form::Whole || !(4..7).contains(i))
    }

    fn roll_back(&self, bytes: &mut [u8]) {
        if injected(self.shown()) {
            return;
        }
        let old = self.old();
        for i in self.kept() {
            bytes[i] = old[i];
        }
    }

    /// The bug that does not roll it back.
    fn shown(&self) -> Fault {
        match self.form {
            Form::Entry => Fault::EntryShown,
            Form::Whole if self.len == 4 => Fault::PointerShown,
            Form::Whole => Fault::InodeShown,
        }
    }

    /// The disk has the same at this place. Of a free entry the kind does not matter.
    fn shows_as(&self, new: &[u8]) -> bool {
        let old = self.old();
        match self.form {
            Form::Whole => *old == *new,
            Form::Entry if new[..4] == [0; 4] => old[..4] == [0; 4],
            Form::Entry => self.kept().all(|i| old[i] == new[i]),
        }
    }
}

#[cfg(test)]
mod tests {
    use block::Random;

    use super::*;

    const BLOCKS: u64 = 6;
    const OFFSETS: u64 = 3;

    /// What one may see of a graph after each of some steps that chance has. The first guard gets
    /// this number.
    fn seen(seed: u64, first: u32) -> Vec<String> {
        let mut graph: Graph<u64> = Graph {
            next: first,
            ..Graph::default()
        };
        let mut random = Random::new(seed);
        let mut dirty = BTreeSet::new();
        let mut seen = Vec::new();
        for step in 0..120 {
            let place = |random: &mut Random| {
                let offset = 8 * random.below(OFFSETS);
                Place::new(random.below(BLOCKS), offset as usize)
            };
            let at = place(&mut random);
            let on = match random.below(2) {
                0 => On::Block(random.below(BLOCKS)),
                _ => On::Place(place(&mut random)),
            };
            let bytes = [random.below(3) as u8; 8];
            let said = match random.below(6) {
                0 | 1 => {
                    dirty.insert(at.block());
                    match graph.is_guarded(at) {
                        true => drop(graph.change(at, &bytes)),
                        false => graph.guard(at, &bytes, Form::Whole, false),
                    }
                    let is_ring = graph.leads_to([on].into_iter(), at);
                    if graph.is_guarded(at) && !is_ring {
                        graph.wait(at, on, &|block| dirty.contains(&block));
                    }
                    format!("{is_ring}")
                }
                2 => {
                    let task = graph.task(step, &[on], &|block| dirty.contains(&block));
                    task.into_iter()
                        .for_each(|task| graph.want(task, Urgency::Now));
                    format!("{task:?} {:?}", graph.next(Urgency::Now, &Held::default()))
                }
                3 | 4 => {
                    let mut copy = [9; 32];
                    if graph.copy(at.block(), &mut copy) {
                        dirty.remove(&at.block());
                    }
                    format!("{copy:?}")
                }
                _ => format!("{} {}", graph.flushed(), graph.force()),
            };
            let open: Vec<bool> = (0..BLOCKS).map(|block| graph.is_open(block)).collect();
            seen.push(format!(
                "{said} {open:?} {} {:?}",
                graph.len(),
                graph.take_ready()
            ));
        }
        seen
    }

    #[test]
    fn guards_get_new_numbers_before_there_are_none_left_and_nobody_sees_that() {
        for seed in 0..300 {
            let usual = seen(seed, 0);
            for before in [1, 7, 20, 40] {
                assert_eq!(
                    seen(seed, u32::MAX - before),
                    usual,
                    "seed {seed}, {before} before"
                );
            }
        }
    }
}
