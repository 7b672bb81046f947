//! States that were judged before.
//!
//! What the auditor says of an image, and what a mount finds in it, follows from its bytes and from
//! the engine. So an image that was found sound is not looked at again: at another moment of the
//! run, in another run, for another mutant, it has the tree that it had. What history allows is
//! asked of that tree each time. Images are told apart by a hash of 128 bits, and engines by their
//! [edition](crate::engine::Engine::edition), so a bug that is injected makes another engine.
//!
//! What is wrong is not kept: it is judged anew, and says the same.

use crate::engine::Engine;
use crate::image::Overlay;
use crate::rules::Rules;
use crate::scratch::Scratch;
use crate::tree::{Flaw, Tree};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::mem::{size_of, take};
use std::sync::Arc;

/// Bytes of the trees of a generation, about. With more, the one before it is forgotten.
const BYTES_MAX: usize = 64 << 20;
/// Trees of which a new one may be a copy.
const RECENT: usize = 8;

/// An image and the engine that looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// The engine's name, and its edition.
    engine: (&'static str, u64),
    /// Bytes of the image, and the rules of the device that it is looked at on.
    kind: (u64, Rules),
    /// The hash of the bytes.
    hash: u128,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// In two generations: what is still asked for moves to the younger one.
#[derive(Default)]
struct Known {
    young: HashMap<Key, Arc<Tree>>,
    old: HashMap<Key, Arc<Tree>>,
    /// Bytes of the trees of the younger generation.
    bytes: usize,
    /// Trees that were found last: most states have one of few.
    recent: Vec<Arc<Tree>>,
}

/// What an engine finds in a crash state that is sound ([`Engine::sound`]).
///
/// # Errors
/// What is wrong with it.
pub fn sound(
    engine: &dyn Engine,
    scratch: &mut Scratch,
    overlay: &Overlay,
) -> Result<Arc<Tree>, Flaw> {
    let key = key(engine, scratch, overlay);
    let mut judge = || scratch.with(overlay, |device| engine.sound(device));
    match key {
        Some(key) => once(key, judge),
        None => judge(),
    }
}

/// As what a state is known, if an engine's verdicts may be kept.
fn key(engine: &dyn Engine, scratch: &mut Scratch, overlay: &Overlay) -> Option<Key> {
    Some(Key {
        engine: (engine.name(), engine.edition()?),
        kind: scratch.kind(),
        hash: scratch.hash(overlay),
    })
}

/// What is found in an image that is sound. `judge` judges it if it is not known.
fn once(key: Key, judge: impl FnOnce() -> Result<Arc<Tree>, Flaw>) -> Result<Arc<Tree>, Flaw> {
    if let Some(tree) = with(|known| known.get(&key)) {
        return Ok(tree);
    }
    let tree = judge()?;
    let recent = with(|known| known.recent.clone());
    let same = recent.into_iter().find(|recent| *recent == tree);
    let (tree, bytes) = match same {
        Some(same) => (same, 0),
        None => {
            let bytes = weight(&tree);
            (tree, bytes)
        }
    };
    // What is forgotten is dropped when nobody waits any more.
    let forgotten = with(|known| known.keep(key, &tree, bytes));
    drop(forgotten);
    Ok(tree)
}

fn with<T>(use_it: impl FnOnce(&mut Known) -> T) -> T {
    use_it(KNOWN.lock().get_or_insert_default())
}

impl Known {
    fn get(&mut self, key: &Key) -> Option<Arc<Tree>> {
        if let Some(tree) = self.young.get(key) {
            return Some(tree.clone());
        }
        let tree = self.old.remove(key)?;
        self.young.insert(*key, tree.clone());
        Some(tree)
    }

    /// `bytes`: what the tree takes, if it is a new one. Returns what there is no room for.
    fn keep(&mut self, key: Key, tree: &Arc<Tree>, bytes: usize) -> HashMap<Key, Arc<Tree>> {
        if bytes > 0 {
            self.recent.truncate(RECENT - 1);
            self.recent.insert(0, tree.clone());
        }
        self.bytes += bytes + size_of::<(Key, Arc<Tree>)>();
        self.young.insert(key, tree.clone());
        if self.bytes <= BYTES_MAX {
            return HashMap::new();
        }
        self.bytes = 0;
        let young = take(&mut self.young);
        std::mem::replace(&mut self.old, young)
    }
}

/// Bytes that a tree takes, about.
fn weight(tree: &Tree) -> usize {
    const OF_ONE: usize = 64;
    let objects = tree.objects.values().map(|object| {
        let xattrs = object
            .xattrs
            .iter()
            .map(|(name, value)| name.len() + value.len());
        let names = object.names.keys().map(Vec::len);
        let all = xattrs.chain(names).map(|len| len + OF_ONE).sum::<usize>();
        size_of_val(object) + object.target.len() + all + OF_ONE
    });
    let blocks = tree.contents.values().flat_map(|blocks| blocks.values());
    let snapshots = tree.snapshots.values().map(weight);
    objects.sum::<usize>()
        + blocks.map(|block| block.len() + OF_ONE).sum::<usize>()
        + snapshots.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Subject;
    use crate::families::by_name;
    use crate::run::Run;
    use pmem::Domain;
    use std::cell::Cell;

    /// A scratch of an image that a crash left, and its subject.
    fn crashed(seed: u64) -> (Scratch, Subject) {
        let workload = by_name("pair-12").expect("a workload of this name");
        let run = Run::record(workload, Domain::Line, false).expect("it runs");
        (run.subject().scratch(run.some_image(seed)), run.subject())
    }

    /// What is found in a state, and whether it was judged for that.
    fn look(scratch: &mut Scratch, subject: Subject, edition: u64) -> (Arc<Tree>, bool) {
        let judged = Cell::new(false);
        let key = Key {
            engine: ("a test's", edition),
            ..key(subject.engine, scratch, &Vec::new()).expect("it is kept")
        };
        let tree = once(key, || {
            judged.set(true);
            scratch.look(|device| subject.engine.sound(device))
        });
        (tree.expect("it is sound"), judged.get())
    }

    #[test]
    fn a_state_is_judged_once_by_each_edition_of_an_engine() {
        let (mut scratch, subject) = crashed(1);
        let (tree, judged) = look(&mut scratch, subject, 0);
        assert!(judged);
        let (again, judged) = look(&mut scratch, subject, 0);
        assert!(!judged && Arc::ptr_eq(&tree, &again));
        let (other, judged) = look(&mut scratch, subject, 1);
        assert!(judged, "of another edition");
        assert!(
            tree == other && Arc::ptr_eq(&tree, &other),
            "one of both is kept"
        );
    }

    #[test]
    fn a_byte_that_differs_makes_another_state() {
        let (mut scratch, subject) = crashed(2);
        let key = |scratch: &mut Scratch, overlay: &Overlay| key(subject.engine, scratch, overlay);
        let whole = key(&mut scratch, &Vec::new());
        let mut line = scratch.durable(70);
        line[5] ^= 1;
        let overlay = vec![(70, line)];
        let other = key(&mut scratch, &overlay);
        assert_ne!(whole, other);
        // However the image came to be what it is.
        let mut copy = subject.scratch(scratch.image(&overlay));
        assert_eq!(key(&mut copy, &Vec::new()), other);
        scratch.make_durable(&overlay);
        assert_eq!(key(&mut scratch, &Vec::new()), other);
        line[5] ^= 1;
        assert_eq!(key(&mut scratch, &vec![(70, line)]), whole);
        let bytes = scratch.image(&Vec::new()).bytes();
        let mut anew = subject.scratch(bytes.into());
        assert_eq!(key(&mut anew, &Vec::new()), other);
    }

    #[test]
    fn what_is_wrong_is_not_kept() {
        let key = Key {
            engine: ("what is wrong", 0),
            kind: (0, Rules::Sectors),
            hash: 1,
        };
        for what in ["one", "other"] {
            assert_eq!(once(key, || Err(what.into())).err().as_deref(), Some(what));
        }
    }

    #[test]
    fn what_nobody_asks_for_is_forgotten() {
        let key = |hash| Key {
            engine: ("a generation", 0),
            kind: (0, Rules::Sectors),
            hash,
        };
        let (mut scratch, subject) = crashed(3);
        let tree = scratch
            .look(|device| subject.engine.sound(device))
            .expect("it is sound");
        let mut known = Known::default();
        for number in 0..4 {
            known.keep(key(number), &tree, BYTES_MAX / 2);
            assert!(known.get(&key(0)).is_some(), "{number}");
        }
        for number in 4..8 {
            known.keep(key(number), &tree, BYTES_MAX / 2);
        }
        assert!(known.get(&key(0)).is_none());
        assert!(known.get(&key(7)).is_some());
    }
}
