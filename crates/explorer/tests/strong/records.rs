//! Records of mode `strong`: those that would be too long for the journal, as a request changes too
//! many pointers, and those at the end of the ring.

use crate::{INJECTING, write};
use explorer::effort::Level;
use explorer::engine::{Mode, Thresholds};
use explorer::explore::explore;
use explorer::families::family;
use explorer::op::Op;
use explorer::run::Run;
use explorer::trace::Event;
use explorer::workload::Workload;
use pmem::{Domain, LINE, PAGE};
use soupfs::fault::{Fault, fault};
use soupfs::layout::Geometry;
use vfs::{Fallocate, RenameMode};

const DOMAINS: [Domain; 3] = [Domain::Line, Domain::Cache, Domain::Page];

fn strong(name: &str, ops: Vec<Op>, setup: usize) -> Workload {
    Workload {
        mode: Mode::STRONG,
        setup,
        ..Workload::new(name, ops)
    }
}

/// Where stores of a run to the ring of the journal begin and end, in order.
fn ring_stores(run: &Run) -> Vec<(u64, u64)> {
    let geometry = Geometry::for_len(run.start.len());
    let journal = geometry.journal * PAGE..(geometry.journal + geometry.journal_pages) * PAGE;
    let ring = journal.start + 2 * LINE..journal.end;
    let store = |event: &Event| match event {
        Event::Store { at, bytes, .. } if ring.contains(at) => {
            Some((*at, *at + bytes.len() as u64))
        }
        _ => None,
    };
    run.events.iter().filter_map(store).collect()
}

/// Changes of many blocks in two leaves of an index, and in one.
fn long() -> Vec<Workload> {
    let edge = |blocks: i64| (512 + blocks) as u64 * PAGE;
    let zero = Fallocate::Zero { keep_size: false };
    let allocate = Fallocate::Allocate { keep_size: false };
    let fallocate = |mode, from, to| Op::Fallocate("foo".into(), mode, from, to - from);
    let made = || vec![Op::Create("foo".into()), write(edge(-3), 24_576, b'a')];
    let with = |name, more: Vec<Op>| strong(name, made().into_iter().chain(more).collect(), 2);
    vec![
        with(
            "overwritten",
            vec![
                write(edge(-2) + 100, 17_000, b'b'),
                write(edge(-3), 24_576, b'c'),
                Op::Unlink("foo".into()),
            ],
        ),
        with(
            "zeroed",
            vec![
                fallocate(zero, edge(-3) + 1, edge(3)),
                write(edge(-2), 12_000, b'b'),
                Op::Truncate("foo".into(), edge(-1)),
            ],
        ),
        with(
            "reserved",
            vec![
                fallocate(allocate, edge(-9), edge(9)),
                write(edge(-9), 60_000, b'b'),
                write(edge(-9), 60_000, b'c'),
            ],
        ),
        with(
            "copied",
            vec![
                Op::CopyRange {
                    from: ("foo".into(), edge(-3)),
                    to: ("foo".into(), 0),
                    len: 24_576,
                },
                fallocate(Fallocate::Punch, edge(-3), edge(2)),
                write(0, 24_576, b'b'),
            ],
        ),
    ]
}

fn tight(workload: Workload) -> Workload {
    Workload {
        thresholds: Thresholds::Tight,
        ..workload
    }
}

#[test]
fn a_request_whose_words_are_too_many_is_whole_all_the_same() {
    let _injecting = INJECTING.lock();
    let whole = family("whole").expect("a family of this name");
    let some = (0..10).filter_map(|n| whole.number(n, true));
    let some = some.map(|n| whole.workload(n).expect("made"));
    for workload in long().into_iter().chain(some).map(tight) {
        for domain in DOMAINS {
            let explored = explore(&workload, domain, Level::Quick.effort(0), None);
            let name = &workload.name;
            let explored = explored.unwrap_or_else(|flaw| panic!("{name} in {domain}: {flaw:?}"));
            assert!(explored.judged > 3, "{name} in {domain}: {explored:?}");
        }
    }
    assert!(fault(Some(Fault::NodeInPlace)), "a test build has faults");
    let noticed = DOMAINS.map(|domain| {
        let one = |workload| explore(&tight(workload), domain, Level::Quick.effort(0), None);
        long().into_iter().any(|workload| one(workload).is_err())
    });
    fault(None);
    assert_eq!(
        noticed, [true; 3],
        "nobody notices nodes that change in place"
    );
}

/// Bytes of the ring that an overwrite of so many blocks takes.
fn record_bytes(blocks: usize, thresholds: Thresholds) -> u64 {
    let block = PAGE as usize;
    let overwritten = |len| {
        let ops = vec![
            Op::Create("foo".into()),
            write(0, 60 * block, b'a'),
            write(0, len, b'b'),
        ];
        let workload = Workload {
            thresholds,
            ..strong("long", ops, 0)
        };
        let run = Run::record(workload, Domain::Line, false).expect("it runs");
        ring_stores(&run)
            .iter()
            .map(|(at, end)| end - at)
            .sum::<u64>()
    };
    // What making the file takes is the same.
    overwritten(blocks * block) - overwritten(0)
}

#[test]
fn a_record_has_no_word_for_each_block_if_there_are_many() {
    let _injecting = INJECTING.lock();
    assert!(record_bytes(50, Thresholds::Usual) > 50 * 16);
    let long = [10, 50].map(|blocks| record_bytes(blocks, Thresholds::Tight));
    assert!(long[0] == long[1] && long[0] <= 4 * LINE, "{long:?}");
}

/// Requests of all sizes, so many.
fn around(count: usize) -> Workload {
    let ops = (0..count).flat_map(|n| {
        let file = format!("f{}", n % 3);
        [
            write(n as u64 * 37 % 9000, 30, n as u8 | 1),
            Op::Create(file.clone()),
            write(n as u64 * 91 % 6000, 5000, n as u8 | 1),
            Op::Rename(file, "to".to_owned(), RenameMode::Replace),
            Op::Truncate("foo".to_owned(), 9000 + n as u64),
        ]
    });
    let begin = [Op::Create("foo".to_owned()), write(0, 9000, b'a')];
    let ops: Vec<Op> = begin.into_iter().chain(ops).collect();
    strong("around", ops, 0)
}

/// The steps of a run whose records begin behind others in the ring and end before them.
fn wraps(run: &Run) -> Vec<usize> {
    let (mut last, mut step, mut wraps) = (0, 0, Vec::new());
    let geometry = Geometry::for_len(run.start.len());
    let ring = geometry.journal * PAGE + 2 * LINE;
    for event in &run.events {
        match event {
            Event::Begin(number) => step = *number,
            Event::Store { at, .. } if *at == ring && last > ring => wraps.push(step),
            _ => {}
        }
        if let Event::Store { at, .. } = event
            && (ring..ring + geometry.journal_pages * PAGE).contains(at)
        {
            last = *at;
        }
    }
    wraps
}

#[test]
fn a_ring_that_begins_again_in_mid_run_leaves_requests_whole() {
    let _injecting = INJECTING.lock();
    for domain in DOMAINS {
        let all = around(120);
        let run = Run::record(all.clone(), domain, false).expect("it runs");
        let wraps = wraps(&run);
        let &wrap = wraps
            .first()
            .unwrap_or_else(|| panic!("no lap in {domain}"));
        // The first step is the mount.
        let (setup, end) = (wrap.saturating_sub(3), (wrap + 4).min(all.ops.len()));
        assert!(setup > 20, "{wraps:?}");
        let lap = strong("lap", all.ops[..end].to_vec(), setup);
        let explored = explore(&lap, domain, Level::Quick.effort(0), None);
        let explored = explored.unwrap_or_else(|flaw| panic!("in {domain}: {flaw:?}"));
        assert!(explored.judged > 20, "in {domain}: {explored:?}");
    }
}
