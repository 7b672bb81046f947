//! What operations leave that are done one after another: all of them in some order, and for the
//! names after a crash some of them.

use super::cases::setup;
use crate::judge::alone;
use crate::op::{Op, Side};
use crate::tree::{Blocks, Flaw, Id, Object, Tree};
use model::Model;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use vfs::{Errno, FileSystem, ManualClock, Time};

/// By what an inode is known in any run: the number of the operation that made it, those of the
/// preparation first; `None`: the root.
pub type Birth = Option<usize>;

/// Names of directories: of each what it leads to.
type Names = BTreeMap<(Birth, Vec<u8>), Birth>;

/// Names that an operation changes, and what they lead to then.
type Changes = BTreeMap<(Birth, Vec<u8>), Option<Birth>>;

/// A time at which the file system is when an operation is done.
pub fn time_of(number: usize) -> Time {
    Time(1_000 * (number as i64 + 2))
}

/// An operation that was done, and when.
#[derive(Debug, Clone)]
pub struct Done {
    pub op: Op,
    pub answer: Result<(), Errno>,
    /// The time that it saw.
    pub time: Time,
    pub called: u64,
    pub returned: u64,
}

impl Done {
    /// Whether it has changed names.
    pub fn changes_names(&self) -> bool {
        let names = matches!(
            self.op,
            Op::Create(_)
                | Op::Mkdir(_)
                | Op::Link(..)
                | Op::Unlink(_)
                | Op::Rmdir(_)
                | Op::Rename(..)
        );
        names && self.answer.is_ok()
    }

    pub fn syncs(&self) -> bool {
        self.op.only_syncs() && self.answer.is_ok()
    }
}

/// What was done, in the order of the calls: first what was pending, then what met.
pub type Past = Vec<Done>;

/// An inode at some time, by itself.
#[derive(PartialEq, Eq)]
pub struct Inode {
    pub object: Object,
    pub blocks: Blocks,
}

/// A file system at some time.
pub struct State {
    pub names: Names,
    pub inodes: BTreeMap<Birth, Inode>,
}

/// The reference file system, and who made what in it.
struct World {
    side: Side<Model>,
    clock: Arc<ManualClock>,
    births: BTreeMap<Id, Birth>,
    /// Everything is held, so that it is there without names, too.
    held: Vec<<Model as FileSystem>::Node>,
    made: usize,
}

impl World {
    /// After what prepares.
    fn new() -> Result<World, Flaw> {
        let clock = Arc::new(ManualClock::new(Time(1_000)));
        let side = Side::new(Model::on(clock.clone()));
        let root = side.fs.attr(&side.fs.root());
        let mut world = World {
            side,
            clock,
            births: BTreeMap::from([((root.ino, root.generation), None)]),
            held: Vec::new(),
            made: 0,
        };
        for (number, op) in setup().iter().enumerate() {
            let done = world.run(op, time_of(number))?;
            done.map_err(|e| format!("preparing, {op}: {e:?}"))?;
        }
        Ok(world)
    }

    /// Do an operation, which gets the next number.
    fn run(&mut self, op: &Op, time: Time) -> Result<Result<(), Errno>, Flaw> {
        self.clock.set(time);
        let answer = self.side.run(op).map_err(|e| e.errno());
        let tree = self.tree()?;
        for id in tree.objects.keys() {
            if !self.births.contains_key(id) {
                self.births.insert(*id, Some(self.made));
                let node = self.side.fs.node(id.0);
                self.held
                    .push(node.map_err(|e| format!("inode {}: {e}", id.0))?);
            }
        }
        self.made += 1;
        Ok(answer)
    }

    fn tree(&self) -> Result<Tree, Flaw> {
        Tree::of(&self.side.fs, &self.held.iter().collect::<Vec<_>>())
    }

    fn state(&self) -> Result<State, Flaw> {
        let tree = self.tree()?;
        let mut state = State {
            names: Names::new(),
            inodes: BTreeMap::new(),
        };
        for (id, object) in &tree.objects {
            let birth = self.births[id];
            let names = object.names.iter();
            let names = names.map(|(name, child)| ((birth, name.clone()), self.births[child]));
            state.names.extend(names);
            let inode = Inode {
                object: alone(object),
                blocks: tree.contents.get(id).cloned().unwrap_or_default(),
            };
            state.inodes.insert(birth, inode);
        }
        Ok(state)
    }
}

/// One order of all operations.
pub struct Order {
    /// Their numbers in the past.
    order: Vec<usize>,
    /// What was there before each, and behind the last.
    pub states: Vec<State>,
}

impl Order {
    /// The state from which on an inode is as the operations left it that had returned by a time.
    /// Others may come before them in the order, and not be durable.
    fn behind(&self, past: &Past, time: u64, birth: Birth) -> usize {
        let inode = |place: usize| self.states[place].inodes.get(&birth);
        let returned = |&place: &usize| past[self.order[place]].returned < time;
        let changes = |&place: &usize| inode(place) != inode(place + 1);
        let mut places = (0..self.order.len()).filter(returned).filter(changes);
        places.next_back().map_or(0, |last| last + 1)
    }

    /// The names that the operation at a place changes.
    fn changes(&self, place: usize) -> Changes {
        let (before, after) = (&self.states[place].names, &self.states[place + 1].names);
        let slots = before.keys().chain(after.keys());
        slots
            .filter(|slot| before.get(slot) != after.get(slot))
            .map(|slot| (slot.clone(), after.get(slot).copied()))
            .collect()
    }

    /// The operations that had returned by a time, and gave an inode a name or changed one in it;
    /// none if one of them took its last name, as nothing of it can be found then.
    fn named(&self, past: &Past, time: u64, birth: Birth) -> BTreeSet<usize> {
        let concerns = |place: usize| {
            let mut changes = self.changes(place).into_iter();
            changes.any(|((dir, _), leads)| dir == birth || leads == Some(birth))
        };
        let is_named = |place: usize| self.states[place].names.values().any(|&to| to == birth);
        let unnames = |place: usize| is_named(place) && !is_named(place + 1);
        let returned = |&place: &usize| past[self.order[place]].returned < time;
        let places = || (0..self.order.len()).filter(returned);
        let last = places().rfind(|&place| concerns(place) || unnames(place));
        if last.is_some_and(unnames) {
            return BTreeSet::new();
        }
        let its = places().filter(|&place| concerns(place));
        its.map(|place| self.order[place]).collect()
    }
}

/// Names that a crash may leave, and the operations that leave them.
pub struct Left {
    pub done: BTreeSet<usize>,
    pub names: Names,
}

/// All orders that explain what was done, and what a crash may leave of the names.
pub struct Orders {
    orders: Vec<Order>,
    pub left: Vec<Left>,
    pending: usize,
}

impl Orders {
    /// Find them. `pending`: so many came before the rest, one after another; then these were
    /// opened.
    ///
    /// # Errors
    /// There is none.
    pub fn of(
        past: &Past,
        (pending, opened): (usize, &BTreeSet<&str>),
        latest: &Tree,
    ) -> Result<Orders, Flaw> {
        let mut found = Orders {
            orders: Vec::new(),
            left: Vec::new(),
            pending,
        };
        let mut why = String::new();
        for order in permutations(past, pending) {
            match explain(past, &order, (pending, opened), latest)? {
                Ok(states) => {
                    let order = Order { order, states };
                    found.leave(past, &order);
                    found.orders.push(order);
                }
                Err(difference) => why = difference,
            }
        }
        match found.orders.is_empty() {
            true => Err(format!("no order explains what is there: {why}")),
            false => Ok(found),
        }
    }

    /// What some of the operations of an order leave of the names: with each all earlier ones on
    /// any of its names.
    fn leave(&mut self, past: &Past, order: &Order) {
        let changes: Vec<(usize, Changes)> = (0..order.order.len())
            .filter(|&place| past[order.order[place]].changes_names())
            .map(|place| (order.order[place], order.changes(place)))
            .collect();
        let meets = |i: usize, j: usize| {
            let mut slots = changes[i].1.keys();
            slots.any(|slot| changes[j].1.contains_key(slot))
        };
        for subset in 0..1u32 << changes.len() {
            let is_in = |i: usize| subset >> i & 1 == 1;
            let lacks = |i: usize| (0..i).any(|j| !is_in(j) && meets(i, j));
            let some: Vec<usize> = (0..changes.len()).filter(|&i| is_in(i)).collect();
            if some.iter().any(|&i| lacks(i)) {
                continue;
            }
            let mut names = order.states[0].names.clone();
            for (slot, leads) in some.iter().flat_map(|&i| &changes[i].1) {
                match leads {
                    Some(birth) => names.insert(slot.clone(), *birth),
                    None => names.remove(slot),
                };
            }
            if is_reachable(&names) {
                let done = some.iter().map(|&i| changes[i].0).collect();
                self.left.push(Left { done, names });
            }
        }
    }

    /// The operations on names that must be there once a sync has returned.
    pub fn required(&self, past: &Past, sync: usize) -> BTreeSet<usize> {
        let called = past[sync].called;
        let Op::Fsync(path, _) = &past[sync].op else {
            let all = (0..past.len()).filter(|&n| past[n].returned < called);
            return all.filter(|&n| past[n].changes_names()).collect();
        };
        let Some(birth) = self.opened(path) else {
            return BTreeSet::new();
        };
        let sets = self.orders.iter();
        let sets = sets.map(|order| order.named(past, called, birth));
        sets.reduce(|one, other| &one & &other).unwrap_or_default()
    }

    /// What a path led to when the operations met.
    fn opened(&self, path: &str) -> Option<Birth> {
        birth_of(&self.orders.first()?.states[self.pending], path)
    }

    /// How an inode may be, if it must not be older than these syncs.
    pub fn candidates(&self, past: &Past, birth: Birth, syncs: &[usize]) -> Vec<&Inode> {
        let of = |order: &Order| {
            let covers = |sync: &&usize| match &past[**sync].op {
                Op::Fsync(path, _) => self.opened(path) == Some(birth),
                _ => true,
            };
            let behind = |&sync: &usize| order.behind(past, past[sync].called, birth);
            syncs.iter().filter(covers).map(behind).max().unwrap_or(0)
        };
        let orders = self.orders.iter();
        orders
            .flat_map(|order| &order.states[of(order)..])
            .filter_map(|state| state.inodes.get(&birth))
            .collect()
    }
}

/// Whether all names are in directories that are reached from the root.
fn is_reachable(names: &Names) -> bool {
    let mut reached = BTreeSet::from([None]);
    loop {
        let before = reached.len();
        let found = names.iter().filter(|((dir, _), _)| reached.contains(dir));
        let found: Vec<Birth> = found.map(|(_, birth)| *birth).collect();
        reached.extend(found);
        if reached.len() == before {
            return names.keys().all(|(dir, _)| reached.contains(dir));
        }
    }
}

/// What a path leads to.
fn birth_of(state: &State, path: &str) -> Option<Birth> {
    let mut names = path.split('/').filter(|name| !name.is_empty());
    names.try_fold(None, |dir, name| {
        state.names.get(&(dir, name.as_bytes().to_vec())).copied()
    })
}

/// The orders in which none comes before one that had returned when it was called.
fn permutations(past: &Past, pending: usize) -> Vec<Vec<usize>> {
    let mut done = vec![(0..pending).collect::<Vec<usize>>()];
    for _ in pending..past.len() {
        let longer = |order: Vec<usize>| {
            let left: Vec<usize> = (0..past.len()).filter(|n| !order.contains(n)).collect();
            let returned = left.iter().map(|&n| past[n].returned).min();
            let next: Vec<usize> = left
                .into_iter()
                .filter(|&n| Some(past[n].called) < returned)
                .collect();
            next.into_iter().map(move |n| {
                let mut longer = order.clone();
                longer.push(n);
                longer
            })
        };
        done = done.into_iter().flat_map(longer).collect();
    }
    done
}

/// The states that an order goes through, or why it does not explain what is there.
fn explain(
    past: &Past,
    order: &[usize],
    (pending, opened): (usize, &BTreeSet<&str>),
    latest: &Tree,
) -> Result<Result<Vec<State>, String>, Flaw> {
    let mut world = World::new()?;
    let first = world.made;
    let mut states = vec![world.state()?];
    for (place, &number) in order.iter().enumerate() {
        if place == pending {
            for path in opened {
                let opened = world.side.open(path);
                opened.map_err(|e| format!("opening {path}: {e}"))?;
            }
        }
        world.made = first + number;
        let done = &past[number];
        let answer = world.run(&done.op, done.time)?;
        if answer != done.answer {
            let what = format!("{} returns {answer:?}, not {:?}", done.op, done.answer);
            return Ok(Err(what));
        }
        states.push(world.state()?);
    }
    let named = Tree::of(&world.side.fs, &[])?;
    Ok(match latest.difference_by_path(&named) {
        Some(difference) => Err(difference),
        None => Ok(states),
    })
}

/// Who made the inodes of a tree that was found, if it has these names.
pub fn births(tree: &Tree, names: &Names) -> Option<BTreeMap<Id, Birth>> {
    let mut births = BTreeMap::from([(tree.root, None)]);
    let mut left = vec![tree.root];
    let mut count = 0;
    while let Some(dir) = left.pop() {
        for (name, &child) in &tree.objects[&dir].names {
            let birth = *names.get(&(births[&dir], name.clone()))?;
            count += 1;
            match births.insert(child, birth) {
                Some(before) if before != birth => return None,
                Some(_) => {}
                None => left.push(child),
            }
        }
    }
    let distinct: BTreeSet<&Birth> = births.values().collect();
    (count == names.len() && distinct.len() == births.len()).then_some(births)
}
