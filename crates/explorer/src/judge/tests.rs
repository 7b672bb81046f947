//! What the judge lets pass and what not, on histories made by hand.

use super::*;
use crate::image::Image;
use crate::workload::Workload;
use pmem::Domain;
use vfs::Time;

const ROOT: Id = (1, 0);
/// The file of these histories.
const FILE: Id = (2, 0);

fn object(kind: Kind, nlink: u32) -> Object {
    Object {
        kind,
        perm: 0o644,
        owner: (0, 0),
        nlink,
        rdev: 0,
        size: 0,
        times: [Time(0); 4],
        target: Vec::new(),
        xattrs: BTreeMap::new(),
        names: BTreeMap::new(),
    }
}

/// A root directory in which these names lead to the file, which holds these bytes.
fn tree(names: &[&str], bytes: &[u8]) -> Tree {
    let mut root = object(Kind::Dir, 2);
    let named = names.iter().map(|name| (name.as_bytes().to_vec(), FILE));
    root.names = named.collect();
    let mut objects: BTreeMap<Id, Object> = [(ROOT, root)].into();
    let mut contents = BTreeMap::new();
    if !names.is_empty() {
        let mut file = object(Kind::File, names.len() as u32);
        file.size = bytes.len() as u64;
        objects.insert(FILE, file);
        let blocks = bytes.chunks(BLOCK as usize).map(<[u8]>::to_vec);
        let blocks = (0..).zip(blocks);
        contents.insert(
            FILE,
            blocks.filter(|(_, b)| b.iter().any(|&b| b != 0)).collect(),
        );
    }
    Tree {
        root: ROOT,
        objects,
        contents,
        snapshots: BTreeMap::new(),
    }
}

fn slot(name: &str) -> Slot {
    (ROOT, name.as_bytes().to_vec())
}

/// A step that nothing makes durable but all of the first.
fn step(latest: Tree, durable: &Tree, moved: &[(&str, &str)]) -> Step {
    Step {
        what: "step".into(),
        time: Time(0),
        synced: Synced::Nothing,
        batches: 0,
        moved: moved.iter().map(|(a, b)| (slot(a), slot(b))).collect(),
        written: None,
        between: Vec::new(),
        latest,
        durable: durable.clone(),
    }
}

fn run(mut steps: Vec<Step>) -> Run {
    steps[0].synced = Synced::Everything;
    Run {
        workload: Workload::new("by hand", Vec::new()),
        rules: Domain::Line.into(),
        made: None,
        start: Image::zeros(0),
        clean: false,
        events: Vec::new(),
        sites: Vec::new(),
        from: 0,
        steps,
        later: Vec::new(),
    }
}

/// Whether the judge of what several operations leave lets names pass that were found at the end.
fn passes(run: &Run, names: &[&str]) -> bool {
    between(
        run,
        &mut Reached::all(0),
        run.steps.len() - 1,
        &tree(names, b""),
    )
    .is_ok()
}

#[test]
fn of_a_write_that_space_divides_the_first_part_may_be_there_and_nothing_else() {
    let tree_of = |len: usize| tree(&["a"], &vec![7; len]);
    let first = tree_of(10);
    let passes = |found: &Tree, written| {
        let mut write = step(tree_of(100), &first, &[]);
        write.written = written;
        let run = run(vec![step(first.clone(), &first, &[]), write]);
        between(&run, &mut Reached::all(0), 1, found).is_ok()
    };
    assert!(passes(&tree_of(50), Some(FILE)));
    assert!(!passes(&tree_of(50), None), "no write that is divided");
    assert!(!passes(&tree_of(5), Some(FILE)) && !passes(&tree_of(101), Some(FILE)));
    let mut other = tree_of(50);
    other.objects.get_mut(&FILE).expect("there").perm = 0;
    assert!(!passes(&other, Some(FILE)), "of other permissions");
}

#[test]
fn a_move_is_at_one_of_its_names_even_if_a_link_stays() {
    let first = tree(&["a", "link"], b"");
    let run = run(vec![
        step(first.clone(), &first, &[]),
        step(tree(&["b", "link"], b""), &first, &[("a", "b")]),
    ]);
    assert!(passes(&run, &["a", "link"]) && passes(&run, &["b", "link"]));
    assert!(!passes(&run, &["a", "b", "link"]), "it is at both");
    assert!(!passes(&run, &["link"]), "it is at neither");
}

#[test]
fn a_name_that_was_synced_does_not_go_back() {
    let (first, moved) = (tree(&["a"], b""), tree(&["b"], b""));
    let last = tree(&["b", "c"], b"");
    let after = |durable: &Tree| Step {
        batches: 1,
        ..step(last.clone(), durable, &[])
    };
    let history = |synced, durable: &Tree| {
        let sync = Step {
            batches: 1,
            synced,
            ..step(moved.clone(), &moved, &[])
        };
        run(vec![
            step(first.clone(), &first, &[]),
            step(moved.clone(), &first, &[("a", "b")]),
            sync,
            after(durable),
        ])
    };
    let with = |names| Synced::These(vec![(FILE, names)]);
    for synced in [with(true), Synced::These(vec![(ROOT, true)])] {
        assert_eq!(quiescent(&history(synced.clone(), &moved)), Ok(()));
        assert_eq!(quiescent(&history(synced.clone(), &last)), Ok(()));
        let back = quiescent(&history(synced, &first)).expect_err("it went back");
        assert!(back.contains("as never since"), "{back}");
    }
    // Nor one that was durable without anybody having asked for it.
    assert!(quiescent(&history(with(false), &first)).is_err());
}

#[test]
fn moves_one_after_another_are_one_move() {
    let first = tree(&["a"], b"");
    let run = run(vec![
        step(first.clone(), &first, &[]),
        step(tree(&["b"], b""), &first, &[("a", "b")]),
        step(tree(&["c"], b""), &first, &[("b", "c")]),
    ]);
    for name in ["a", "b", "c"] {
        assert!(passes(&run, &[name]), "{name}");
    }
    assert!(!passes(&run, &["a", "c"]), "first and last");
    assert!(!passes(&run, &["a", "b"]) && !passes(&run, &["b", "c"]));
}

#[test]
fn a_name_that_was_linked_beside_a_move_may_be_there() {
    let first = tree(&["a"], b"");
    let run = run(vec![
        step(first.clone(), &first, &[]),
        step(tree(&["b"], b""), &first, &[("a", "b")]),
        step(tree(&["a", "b"], b""), &first, &[]),
    ]);
    assert!(passes(&run, &["a", "b"]));
}

#[test]
fn a_move_between_two_names_of_one_file_is_none() {
    let first = tree(&["a"], b"");
    let run = run(vec![
        step(first.clone(), &first, &[]),
        step(tree(&["a", "b"], b""), &first, &[]),
        step(tree(&["a", "b"], b""), &first, &[("a", "b")]),
    ]);
    assert!(passes(&run, &["a"]) && passes(&run, &["a", "b"]));
}

#[test]
fn a_name_that_was_lost_and_made_again_after_a_move_comes_with_the_move() {
    let first = tree(&["a", "link"], b"");
    let moved = [
        step(first.clone(), &first, &[]),
        step(tree(&["b", "link"], b""), &first, &[("a", "b")]),
        step(tree(&["link"], b""), &first, &[]),
    ];
    let lost = run(moved.to_vec());
    assert!(passes(&lost, &["link"]) && !passes(&lost, &["a", "b", "link"]));
    let again = step(tree(&["b", "link"], b""), &first, &[]);
    let renewed = run([moved.to_vec(), vec![again]].concat());
    assert!(passes(&renewed, &["a", "link"]) && passes(&renewed, &["b", "link"]));
    assert!(!passes(&renewed, &["a", "b", "link"]));
}

#[test]
fn a_name_that_was_made_again_between_two_moves_comes_with_both() {
    let first = tree(&["a"], b"");
    let mut steps = vec![
        step(first.clone(), &first, &[]),
        step(tree(&["b"], b""), &first, &[("a", "b")]),
        step(tree(&["c"], b""), &first, &[("b", "c")]),
    ];
    assert!(!passes(&run(steps.clone()), &["a", "b"]));
    steps.push(step(tree(&["b", "c"], b""), &first, &[]));
    let run = run(steps);
    assert!(passes(&run, &["a"]) && passes(&run, &["b"]) && passes(&run, &["c"]));
    assert!(passes(&run, &["b", "c"]) && !passes(&run, &["a", "b"]));
    assert!(!passes(&run, &["a", "c"]) && !passes(&run, &["a", "b", "c"]));
}

#[test]
fn a_move_there_and_back_is_at_one_of_both_names() {
    let first = tree(&["a"], b"");
    let run = run(vec![
        step(first.clone(), &first, &[]),
        step(tree(&["b"], b""), &first, &[("a", "b")]),
        step(tree(&["a"], b""), &first, &[("b", "a")]),
    ]);
    assert!(passes(&run, &["a"]) && passes(&run, &["b"]) && !passes(&run, &["a", "b"]));
}

/// Whether the judge lets bytes pass that a file of this size had one after another, none synced
/// but the first.
fn bytes_pass(history: &[&[u8]], found: &[u8]) -> bool {
    let durable = tree(&["a"], found);
    let steps = history
        .iter()
        .map(|bytes| step(tree(&["a"], bytes), &durable, &[]));
    let run = run(steps.collect());
    let moment = Moment {
        step: run.steps.len() - 1,
        ended: false,
    };
    crashed(&run, moment, &durable).is_ok()
}

#[test]
fn zeros_are_found_where_a_file_was_cut_off_and_not_where_it_only_grew() {
    assert!(bytes_pass(&[b"1111", b"1111222"], b"1111222"));
    assert!(bytes_pass(&[b"1111", b"1111222"], b"1111"));
    assert!(
        !bytes_pass(&[b"1111", b"1111222"], b"1111\0\0\0"),
        "an append"
    );
    assert!(
        bytes_pass(&[b"1111", b"11", b"1122"], b"11\0\0"),
        "cut, and grown"
    );
    assert!(
        !bytes_pass(&[b"1111", b"11", b"1122"], &[b'1', 0, b'2', b'2']),
        "before the cut"
    );
    assert!(bytes_pass(
        &[b"1111", b"11\0\0\0\0", b"112222"],
        &[b'1', b'1', 0, 0, b'2', b'2']
    ));
    assert!(!bytes_pass(&[b"1111", b"11"], b"1133"), "never so");
}

#[test]
fn a_step_of_several_batches_leaves_one_of_their_trees() {
    let first = tree(&["a"], b"");
    let all = tree(&["a", "b", "c"], b"");
    let mut run = run(vec![
        step(first.clone(), &first, &[]),
        step(all.clone(), &all, &[]),
    ]);
    run.steps[1].batches = 2;
    run.steps[1].between = vec![tree(&["a", "b"], b"")];
    let moment = Moment {
        step: 1,
        ended: false,
    };
    let found = |names: &[&str]| crashed(&run, moment, &tree(names, b"")).is_ok();
    assert!(found(&["a"]) && found(&["a", "b"]) && found(&["a", "b", "c"]));
    assert!(!found(&["a", "c"]), "the second batch without the first");
}

#[test]
fn a_sync_beside_a_change_keeps_all_from_before() {
    let (first, moved) = (tree(&["a"], b""), tree(&["b"], b""));
    let last = tree(&["b", "c"], b"");
    let found = |durable: &Tree| {
        let sync = Step {
            batches: 1,
            synced: Synced::EverythingBefore,
            ..step(last.clone(), durable, &[])
        };
        quiescent(&run(vec![
            step(first.clone(), &first, &[]),
            step(moved.clone(), &first, &[("a", "b")]),
            sync,
        ]))
    };
    assert_eq!(found(&moved), Ok(()));
    assert_eq!(found(&last), Ok(()));
    let lost = found(&first).expect_err("the move is lost");
    assert!(lost.contains("not everything from before"), "{lost}");
}

/// Two names are taken, then the file is let go of, then the second removal is durable, and not the
/// first.
#[test]
fn a_file_that_was_held_without_a_name_was_changed_when_it_lost_the_last() {
    let at = |mut tree: Tree, ctime: i64| {
        let file = tree.objects.get_mut(&FILE).expect("it has a name");
        file.times[CTIME] = Time(ctime);
        tree
    };
    let first = tree(&["a", "b"], b"");
    let nameless = |held: bool| {
        let mut tree = at(tree(&["a"], b""), 2);
        let root = tree.objects.get_mut(&ROOT).expect("the root");
        root.names.clear();
        match held {
            true => tree.objects.get_mut(&FILE).expect("held").nlink = 0,
            false => drop((tree.objects.remove(&FILE), tree.contents.remove(&FILE))),
        }
        tree
    };
    let step = |latest: Tree, time: i64| Step {
        time: Time(time),
        ..step(latest, &first, &[])
    };
    let found = |held: bool, ctime: i64| {
        let mut steps = vec![
            step(first.clone(), 0),
            step(at(tree(&["b"], b""), 1), 1),
            step(nameless(held), 2),
            step(nameless(false), 3),
            step(nameless(false), 4),
        ];
        steps[4].durable = at(tree(&["a"], b""), ctime);
        let run = run(steps);
        let mut reached = Reached::all(0);
        between(&run, &mut reached, 4, &run.steps[4].durable)
    };
    assert_eq!(found(true, 2), Ok(()));
    found(true, 3).expect_err("it changed when it was let go of");
    assert_eq!(found(false, 2), Ok(()));
}

/// A root directory with these names of files.
fn files(names: &[(&str, u64)]) -> Tree {
    let mut tree = tree(&[], b"");
    for (name, ino) in names {
        let root = tree.objects.get_mut(&ROOT).expect("the root");
        root.names.insert(name.as_bytes().to_vec(), (*ino, 0));
        let file = tree.objects.entry((*ino, 0));
        file.or_insert_with(|| object(Kind::File, 0)).nlink += 1;
        tree.contents.insert((*ino, 0), Blocks::new());
    }
    tree
}

/// Names, and which of them an operation moved.
type Names<'a> = (&'a [(&'a str, u64)], &'a [(&'a str, &'a str)]);

/// Whether the judge lets these names pass after steps that left those.
fn names_pass(history: &[Names<'_>], found: &[(&str, u64)]) -> bool {
    let first = files(history[0].0);
    let steps = history
        .iter()
        .map(|(names, moved)| step(files(names), &first, moved));
    let run = run(steps.collect());
    let tree = files(found);
    between(&run, &mut Reached::all(0), run.steps.len() - 1, &tree).is_ok()
}

#[test]
fn what_replaced_a_name_and_moved_on_is_there_as_at_one_time() {
    let history: &[Names<'_>] = &[
        (&[("cfg", 2), ("new", 3)], &[]),
        (&[("cfg", 3)], &[("new", "cfg")]),
        (&[("bak", 3)], &[("cfg", "bak")]),
    ];
    for (names, _) in history {
        assert!(names_pass(history, names));
    }
    assert!(!names_pass(history, &[("new", 3)]), "replaced, by nothing");
    assert!(!names_pass(history, &[("cfg", 2), ("bak", 3)]));
    assert!(!names_pass(history, &[("new", 3), ("bak", 3)]));
}

#[test]
fn what_replaced_a_name_and_was_removed_is_there_as_at_one_time() {
    let history: &[Names<'_>] = &[
        (&[("cfg", 2), ("new", 3)], &[]),
        (&[("cfg", 3)], &[("new", "cfg")]),
        (&[], &[]),
    ];
    assert!(names_pass(history, history[0].0) && names_pass(history, &[]));
    assert!(!names_pass(history, &[("new", 3)]) && !names_pass(history, &[("cfg", 2)]));
}

#[test]
fn renames_of_other_names_come_in_any_order_and_what_ties_them_with_both() {
    let mut history: Vec<Names<'_>> = vec![
        (&[("a", 2), ("c", 3)], &[]),
        (&[("b", 2), ("c", 3)], &[("a", "b")]),
        (&[("b", 2), ("d", 3)], &[("c", "d")]),
    ];
    assert!(names_pass(&history, &[("a", 2), ("d", 3)]));
    history.push((&[("b", 3), ("d", 2)], &[("b", "d")]));
    assert!(names_pass(&history, &[("a", 2), ("d", 3)]));
    assert!(names_pass(&history, &[("b", 3), ("d", 2)]));
    assert!(!names_pass(&history, &[("a", 2), ("b", 3)]));
    assert!(!names_pass(&history, &[("b", 3), ("c", 3), ("d", 2)]));
}

#[test]
fn a_ring_of_renames_is_there_as_at_one_time() {
    let history: &[Names<'_>] = &[
        (&[("a", 2), ("b", 3)], &[]),
        (&[("b", 3), ("t", 2)], &[("a", "t")]),
        (&[("a", 3), ("t", 2)], &[("b", "a")]),
        (&[("a", 3), ("b", 2)], &[("t", "b")]),
    ];
    for (names, _) in history {
        assert!(names_pass(history, names));
    }
    assert!(!names_pass(history, &[("a", 2), ("b", 2)]));
    assert!(!names_pass(history, &[("a", 3), ("b", 3)]));
    assert!(!names_pass(history, &[("a", 3)]));
}

#[test]
fn snapshots_are_there_from_when_they_were_made_until_they_are_removed() {
    let none = tree(&["a"], b"");
    let with = |kept: &Tree| Tree {
        snapshots: [("one".to_owned(), kept.clone())].into(),
        ..none.clone()
    };
    let one = with(&none);
    let steps = [&none, &one, &one, &none].map(|tree| step(tree.clone(), tree, &[]));
    let run = run(steps.to_vec());
    let judged = |step, ended, tree: &Tree| {
        let moment = Moment { step, ended };
        snapshots::crashed(&run, moment, tree)
    };
    for (tree, has) in [(&none, false), (&one, true)] {
        assert!(judged(1, false, tree).is_ok(), "it is being made");
        assert_eq!(judged(1, true, tree).is_ok(), has);
        assert_eq!(judged(2, false, tree).is_ok(), has);
        assert!(judged(3, false, tree).is_ok(), "it is being removed");
        assert_eq!(judged(3, true, tree).is_ok(), !has);
    }
    let torn = with(&tree(&["a"], b"later"));
    for step in 1..4 {
        judged(step, false, &torn).expect_err("another tree than that of its creation");
    }
}
