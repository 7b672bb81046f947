//! Advisory locks against a reference that keeps one entry per byte and owner; waiting; deadlocks.

mod common;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use block::Random;
use common::{fails, setup};
use proptest::prelude::*;
use vfs::{Context, Cred, Errno, Files, LockKind, LockRange, Locks, OpenFlags, RecordLock};

use LockKind::{Exclusive, Shared};

const BYTES: u64 = 24;
const OWNERS: u64 = 3;
const INO: u64 = 7;

/// Longer than anything takes that ends at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// What each owner holds on each byte; one more stands for all beyond.
#[derive(Default)]
struct Reference([[Option<LockKind>; BYTES as usize + 1]; OWNERS as usize]);

impl Reference {
    fn blocked(&self, want: &RecordLock) -> bool {
        let others = (0..OWNERS).filter(|&owner| owner != want.owner);
        others
            .flat_map(|owner| bytes(want.range).map(move |at| (owner, at)))
            .any(|(owner, at)| {
                self.0[owner as usize][at]
                    .is_some_and(|held| held == Exclusive || want.kind == Exclusive)
            })
    }

    fn set(&mut self, owner: u64, range: LockRange, kind: Option<LockKind>) {
        bytes(range).for_each(|at| self.0[owner as usize][at] = kind);
    }
}

fn bytes(range: LockRange) -> impl Iterator<Item = usize> + Clone {
    range.start as usize..=range.end.min(BYTES) as usize
}

#[derive(Debug, Clone)]
struct Step {
    owner: u64,
    range: LockRange,
    kind: Option<LockKind>,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..BYTES, 0..BYTES, 0u8..8).prop_map(|(a, b, open)| LockRange {
        start: a.min(b),
        end: if open == 0 {
            LockRange::TO_END
        } else {
            a.max(b)
        },
    });
    let kind = prop_oneof![Just(None), Just(Some(Shared)), Just(Some(Exclusive))];
    (0..OWNERS, range, kind).prop_map(|(owner, range, kind)| Step { owner, range, kind })
}

fn record(owner: u64, kind: LockKind, start: u64, end: u64) -> RecordLock {
    RecordLock {
        owner,
        pid: owner as u32,
        kind,
        range: LockRange { start, end },
    }
}

/// Looks at every byte through `F_GETLK`, as a stranger and as each of the owners.
fn agree(locks: &Locks, reference: &Reference) {
    for at in 0..=BYTES {
        for owner in 0..=OWNERS {
            for kind in [Shared, Exclusive] {
                let want = record(owner, kind, at, at);
                let found = locks.test_record(INO, &want);
                assert_eq!(
                    found.is_some(),
                    reference.blocked(&want),
                    "{want:?}: {found:?}"
                );
                if let Some(lock) = found {
                    let held = reference.0[lock.owner as usize][at as usize];
                    assert_eq!(held, Some(lock.kind), "{lock:?}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn record_locks_split_merge_and_exclude_byte_by_byte(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let locks = Locks::default();
        let mut reference = Reference::default();
        for Step { owner, range, kind } in steps {
            match kind {
                None => {
                    locks.unlock_record(INO, owner, range);
                    reference.set(owner, range, None);
                }
                Some(kind) => {
                    let want = RecordLock { owner, pid: 0, kind, range };
                    let blocked = reference.blocked(&want);
                    match locks.try_record(INO, &want) {
                        Ok(()) => {
                            prop_assert!(!blocked, "{:?}", want);
                            reference.set(owner, range, Some(kind));
                        }
                        Err(error) => {
                            prop_assert_eq!(error.errno(), Errno::AGAIN);
                            prop_assert!(blocked, "{:?}", want);
                        }
                    }
                }
            }
            agree(&locks, &reference);
        }
        (0..OWNERS).for_each(|owner| locks.release_records(INO, owner));
        agree(&locks, &Reference::default());
    }

    #[test]
    fn flocks_exclude_as_readers_and_writers_do(
        steps in prop::collection::vec((0..4u64, 0u8..3), 1..60),
    ) {
        let locks = Locks::default();
        let mut held: [Option<LockKind>; 4] = [None; 4];
        for (holder, what) in steps {
            let kind = [None, Some(Shared), Some(Exclusive)][what as usize];
            held[holder as usize] = None;
            match kind {
                None => locks.unflock(INO, holder),
                Some(kind) => {
                    let free = held.iter().flatten().all(|&h| h == Shared && kind == Shared);
                    prop_assert_eq!(locks.try_flock(INO, holder, kind).is_ok(), free);
                    held[holder as usize] = free.then_some(kind);
                }
            }
        }
    }
}

#[test]
fn neighbouring_locks_of_a_kind_are_one() {
    let locks = Locks::default();
    let take = |kind, start, end| locks.try_record(INO, &record(1, kind, start, end)).unwrap();
    let seen = |at| {
        locks
            .test_record(INO, &record(2, Exclusive, at, at))
            .map(|lock| lock.range)
    };
    let range = |start, end| Some(LockRange { start, end });
    take(Shared, 0, 9);
    take(Shared, 20, LockRange::TO_END);
    take(Exclusive, 40, 49);
    assert_eq!(
        (seen(0), seen(15), seen(25)),
        (range(0, 9), None, range(20, 39))
    );
    take(Shared, 10, 19);
    assert_eq!(seen(0), range(0, 39));
    take(Shared, 40, 49);
    assert_eq!(seen(45), range(0, LockRange::TO_END));
}

#[test]
fn ranges_are_given_as_fcntl_has_them() {
    let range = |start, end| LockRange { start, end };
    assert_eq!(LockRange::new(5, 3).unwrap(), range(5, 7));
    assert_eq!(LockRange::new(5, 0).unwrap(), range(5, LockRange::TO_END));
    assert_eq!(LockRange::new(5, -5).unwrap(), range(0, 4));
    assert_eq!(
        LockRange::new(i64::MAX, 1).unwrap(),
        range(LockRange::TO_END, LockRange::TO_END)
    );
    for (start, len) in [(-1, 5), (4, -5), (-1, 0), (i64::MIN, -1), (0, i64::MIN)] {
        fails(LockRange::new(start, len), Errno::INVAL);
    }
    fails(LockRange::new(i64::MAX, 2), Errno::OVERFLOW);
}

/// Returns when so many callers wait for a lock.
#[track_caller]
fn until_wait(locks: &Locks, callers: usize) {
    let start = Instant::now();
    while locks.waiting() != callers {
        let waiting = locks.waiting();
        assert!(start.elapsed() < PATIENCE, "{waiting} wait, not {callers}");
        thread::yield_now();
    }
}

/// Runs `wait` in a thread, and asserts that it waits until `release` is called.
#[track_caller]
fn waits_until(locks: &Locks, wait: impl FnOnce() + Send, release: impl FnOnce()) {
    let (done, ended) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            wait();
            done.send(()).unwrap();
        });
        until_wait(locks, 1);
        assert!(ended.try_recv().is_err(), "did not wait");
        release();
        ended.recv_timeout(PATIENCE).expect("was not woken");
    });
}

#[test]
fn who_waits_for_a_record_is_woken_when_it_is_free() {
    let locks = Locks::default();
    let (one, two) = (record(1, Exclusive, 0, 9), record(2, Shared, 5, 5));
    locks.wait_record(INO, &one).unwrap();
    waits_until(
        &locks,
        || locks.wait_record(INO, &two).unwrap(),
        || locks.unlock_record(INO, 1, LockRange { start: 5, end: 5 }),
    );
    assert_eq!(
        locks.test_record(INO, &record(3, Exclusive, 5, 5)),
        Some(two)
    );
    waits_until(
        &locks,
        || locks.wait_record(INO, &record(2, Shared, 0, 9)).unwrap(),
        || locks.try_record(INO, &record(1, Shared, 0, 9)).unwrap(),
    );
}

#[test]
fn a_circle_of_two_is_refused_to_the_one_who_would_close_it() {
    let locks = Locks::default();
    locks.try_record(1, &record(1, Exclusive, 0, 0)).unwrap();
    locks.try_record(2, &record(2, Exclusive, 0, 0)).unwrap();
    waits_until(
        &locks,
        || locks.wait_record(2, &record(1, Exclusive, 0, 0)).unwrap(),
        || {
            fails(
                locks.wait_record(1, &record(2, Shared, 0, 0)),
                Errno::DEADLK,
            );
            locks.release_records(2, 2);
        },
    );
}

#[test]
fn a_circle_through_several_readers_and_files_is_found() {
    let locks = Locks::default();
    // 1 and 2 both read what 3 wants to write; 2 wants what 4 has.
    locks.try_record(1, &record(1, Shared, 0, 0)).unwrap();
    locks.try_record(1, &record(2, Shared, 0, 0)).unwrap();
    locks.try_record(2, &record(4, Exclusive, 0, 0)).unwrap();
    locks.try_record(65, &record(3, Exclusive, 0, 0)).unwrap();
    let locks = &locks;
    thread::scope(|scope| {
        scope.spawn(|| locks.wait_record(1, &record(3, Exclusive, 0, 0)).unwrap());
        scope.spawn(|| locks.wait_record(2, &record(2, Exclusive, 0, 0)).unwrap());
        // Until both of them wait, 4 would simply wait as well.
        until_wait(locks, 2);
        fails(
            locks.wait_record(65, &record(4, Shared, 0, 0)),
            Errno::DEADLK,
        );
        locks.release_records(2, 4);
        locks.release_records(1, 1);
        locks.release_records(1, 2);
    });
}

#[test]
fn a_circle_through_a_lock_that_came_during_the_wait_is_found() {
    let locks = Locks::default();
    locks.try_record(1, &record(1, Shared, 0, 0)).unwrap();
    locks.try_record(2, &record(2, Exclusive, 0, 0)).unwrap();
    waits_until(
        &locks,
        || locks.wait_record(1, &record(2, Exclusive, 0, 0)).unwrap(),
        || {
            locks.try_record(1, &record(3, Shared, 0, 0)).unwrap();
            fails(
                locks.wait_record(2, &record(3, Shared, 0, 0)),
                Errno::DEADLK,
            );
            locks.release_records(1, 1);
            locks.release_records(1, 3);
        },
    );
}

#[test]
fn a_long_wait_that_is_no_circle_is_not_taken_for_one() {
    let locks = Locks::default();
    locks.try_record(1, &record(1, Exclusive, 0, 0)).unwrap();
    locks.try_record(2, &record(2, Exclusive, 0, 0)).unwrap();
    let locks = &locks;
    thread::scope(|scope| {
        scope.spawn(|| {
            locks.wait_record(1, &record(2, Exclusive, 0, 0)).unwrap();
            locks.release_records(1, 2);
            locks.release_records(2, 2);
        });
        scope.spawn(|| locks.wait_record(2, &record(3, Exclusive, 0, 0)).unwrap());
        until_wait(locks, 2);
        locks.release_records(1, 1);
    });
    assert!(locks.test_record(2, &record(9, Shared, 0, 0)).is_some());
}

#[test]
fn threads_that_lock_in_any_order_never_hang_and_never_share_what_is_exclusive() {
    let locks = Locks::default();
    let holders: [std::sync::atomic::AtomicU64; 4] = Default::default();
    let refusals = std::sync::atomic::AtomicU64::new(0);
    use std::sync::atomic::Ordering::SeqCst;
    thread::scope(|scope| {
        for owner in 1..=4u64 {
            let (locks, holders, refusals) = (&locks, &holders, &refusals);
            scope.spawn(move || {
                let mut random = Random::new(owner);
                for _ in 0..300 {
                    let (a, b) = (random.below(4), random.below(4));
                    let mut held = Vec::new();
                    for ino in [a, b] {
                        match locks.wait_record(ino, &record(owner, Exclusive, 0, 0)) {
                            Ok(()) => held.push(ino),
                            Err(error) => {
                                assert_eq!(error.errno(), Errno::DEADLK);
                                refusals.fetch_add(1, SeqCst);
                                break;
                            }
                        }
                    }
                    held.dedup();
                    for &ino in &held {
                        assert_eq!(holders[ino as usize].swap(owner, SeqCst), 0);
                    }
                    thread::yield_now();
                    for &ino in &held {
                        assert_eq!(holders[ino as usize].swap(0, SeqCst), owner);
                        locks.release_records(ino, owner);
                    }
                }
            });
        }
    });
}

#[test]
fn an_flock_waits_for_its_kind_and_a_change_of_kind_lets_others_in() {
    let locks = Locks::default();
    locks.try_flock(INO, 1, Exclusive).unwrap();
    waits_until(
        &locks,
        || locks.wait_flock(INO, 2, Shared),
        || locks.try_flock(INO, 1, Shared).unwrap(),
    );
    fails(locks.try_flock(INO, 1, Exclusive), Errno::AGAIN);
    // The refused upgrade has cost holder 1 its shared lock.
    locks.try_flock(INO, 2, Exclusive).unwrap();
    waits_until(
        &locks,
        || locks.wait_flock(INO, 1, Exclusive),
        || locks.unflock(INO, 2),
    );
}

#[test]
fn two_who_upgrade_their_flock_do_not_wait_for_each_other() {
    let locks = Locks::default();
    locks.try_flock(INO, 1, Shared).unwrap();
    locks.try_flock(INO, 2, Shared).unwrap();
    thread::scope(|scope| {
        for holder in [1, 2] {
            let locks = &locks;
            scope.spawn(move || {
                locks.wait_flock(INO, holder, Exclusive);
                locks.unflock(INO, holder);
            });
        }
    });
}

#[test]
fn closing_any_descriptor_of_a_file_gives_its_record_locks_up() {
    let s = setup();
    let ctx = Context::new(&s.vfs, Cred::root());
    let (a, b) = (Files::new(s.vfs.clone(), 10), Files::new(s.vfs.clone(), 10));
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
    let (one, two) = (
        a.open(&ctx, "f", flags, 0o644).unwrap(),
        a.open(&ctx, "f", flags, 0).unwrap(),
    );
    let other = b.open(&ctx, "f", flags, 0).unwrap();
    let range = LockRange::new(0, 10).unwrap();
    a.lock(one, Exclusive, range, false).unwrap();
    a.lock(two, Shared, LockRange::new(0, 1).unwrap(), false)
        .unwrap();
    fails(b.lock(other, Exclusive, range, false), Errno::AGAIN);
    assert_eq!(
        b.test_lock(other, Exclusive, range).unwrap().unwrap().kind,
        Shared
    );
    assert_eq!(a.test_lock(one, Exclusive, range).unwrap(), None);
    a.close(two).unwrap();
    b.lock(other, Exclusive, range, true).unwrap();
    fails(a.lock(one, Shared, range, false), Errno::AGAIN);
    b.unlock(other, range).unwrap();
    a.lock(one, Shared, range, false).unwrap();
    drop(a);
    b.lock(other, Exclusive, range, false).unwrap();
}

#[test]
fn closing_what_was_opened_as_a_place_leaves_record_locks_alone() {
    let s = setup();
    let ctx = Context::new(&s.vfs, Cred::root());
    let (a, b) = (Files::new(s.vfs.clone(), 10), Files::new(s.vfs.clone(), 10));
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
    let held = a.open(&ctx, "f", flags, 0o644).unwrap();
    let other = b.open(&ctx, "f", flags, 0).unwrap();
    let range = LockRange::new(0, 10).unwrap();
    a.lock(held, Exclusive, range, false).unwrap();
    let place = a.open(&ctx, "f", OpenFlags::PATH, 0).unwrap();
    a.close(place).unwrap();
    fails(b.lock(other, Exclusive, range, false), Errno::AGAIN);
}

#[test]
fn an_flock_is_given_up_with_the_last_duplicate() {
    let s = setup();
    let (files, ctx) = s.files();
    let flags = OpenFlags::READ | OpenFlags::CREATE;
    let one = files.open(&ctx, "f", flags, 0o644).unwrap();
    let twin = files.dup(one).unwrap();
    let other = files.open(&ctx, "f", flags, 0o644).unwrap();
    files.flock(one, Some(Exclusive), false).unwrap();
    files.flock(twin, Some(Exclusive), false).unwrap();
    fails(files.flock(other, Some(Shared), false), Errno::AGAIN);
    files.close(one).unwrap();
    fails(files.flock(other, Some(Shared), false), Errno::AGAIN);
    waits_until(
        s.vfs.locks(),
        || files.flock(other, Some(Shared), true).unwrap(),
        || files.close(twin).unwrap(),
    );
    files.flock(other, None, false).unwrap();
}

#[test]
fn locks_need_a_descriptor_opened_for_that_use() {
    let s = setup();
    let (files, ctx) = s.files();
    let w = files
        .open(&ctx, "f", OpenFlags::WRITE | OpenFlags::CREATE, 0o644)
        .unwrap();
    let r = files.open(&ctx, "f", OpenFlags::READ, 0).unwrap();
    let p = files.open(&ctx, "f", OpenFlags::PATH, 0).unwrap();
    let range = LockRange::new(0, 0).unwrap();
    for (fd, kind, allowed) in [
        (w, Exclusive, true),
        (w, Shared, false),
        (r, Shared, true),
        (r, Exclusive, false),
        (p, Shared, false),
        (p, Exclusive, false),
    ] {
        let result = files.lock(fd, kind, range, false);
        assert_eq!(
            result.err().map(|e| e.errno()),
            (!allowed).then_some(Errno::BADF)
        );
    }
    fails(files.flock(p, Some(Shared), false), Errno::BADF);
    fails(files.unlock(p, range), Errno::BADF);
    fails(files.test_lock(p, Shared, range), Errno::BADF);
}

#[test]
fn a_lock_whose_descriptor_was_closed_during_the_wait_is_given_back() {
    let s = setup();
    let ctx = Context::new(&s.vfs, Cred::root());
    let (a, b) = (Files::new(s.vfs.clone(), 10), Files::new(s.vfs.clone(), 10));
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
    let held = a.open(&ctx, "f", flags, 0o644).unwrap();
    let waiting = b.open(&ctx, "f", flags, 0o644).unwrap();
    let range = LockRange::new(0, 0).unwrap();
    a.lock(held, Exclusive, range, false).unwrap();
    waits_until(
        s.vfs.locks(),
        || fails(b.lock(waiting, Exclusive, range, true), Errno::BADF),
        || {
            b.close(waiting).unwrap();
            a.unlock(held, range).unwrap();
        },
    );
    assert_eq!(a.test_lock(held, Exclusive, range).unwrap(), None);
}
