//! Work on several threads, whose result is as if there were one.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Do this with each, on so many threads.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    jobs: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let done = Mutex::new(Vec::new());
    let one = |(i, item), _: Wanted<'_>| {
        let result = work(item);
        done.lock().push((i, result));
        None::<()>
    };
    first_in_parallel(items.iter().enumerate(), jobs, one);
    let mut done = done.into_inner();
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Whether the work on an item goes on: not if one before it has given something.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    item: usize,
    /// The number of the first item that has given something.
    first: &'a AtomicUsize,
}

impl Wanted<'_> {
    /// Whether it goes on.
    pub fn is(self) -> bool {
        self.item <= self.first.load(Relaxed)
    }
}

/// When something ends.
#[derive(Debug, Clone, Copy)]
pub enum Until<'a> {
    /// When it is done.
    Done,
    /// At this time, even if it is not done.
    Time(Instant),
    /// When nobody wants its result any more.
    Wanted(Wanted<'a>),
}

impl Until<'_> {
    /// Whether it ends now, done or not.
    pub fn is_over(self) -> bool {
        match self {
            Until::Done => false,
            Until::Time(time) => Instant::now() >= time,
            Until::Wanted(wanted) => !wanted.is(),
        }
    }
}

/// What the first of these gives that gives something, whoever of so many threads is faster. Then
/// no more are tried, and what the work on later ones gives is not wanted.
pub fn first_in_parallel<T, R: Send>(
    items: impl Iterator<Item = T> + Send,
    jobs: usize,
    work: impl Fn(T, Wanted<'_>) -> Option<R> + Sync,
) -> Option<R> {
    let next = Mutex::new(Some(items.enumerate()));
    let results: Mutex<Option<(usize, R)>> = Mutex::new(None);
    let first = AtomicUsize::new(usize::MAX);
    let work_on = || {
        loop {
            // What comes before the item that is taken was taken, too, and is tried to its end.
            let Some((i, item)) = next.lock().as_mut().and_then(Iterator::next) else {
                return;
            };
            let wanted = Wanted {
                item: i,
                first: &first,
            };
            let Some(result) = work(item, wanted) else {
                continue;
            };
            *next.lock() = None;
            let mut results = results.lock();
            if results.as_ref().is_none_or(|(before, _)| i < *before) {
                first.store(i, Relaxed);
                *results = Some((i, result));
            }
        }
    };
    std::thread::scope(|s| (0..jobs.max(1)).for_each(|_| drop(s.spawn(work_on))));
    results.into_inner().map(|(_, result)| result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_the_first_is_the_first_in_order() {
        let items: Vec<u64> = (0..200).collect();
        let squares = in_parallel(&items, 3, |n| n * n);
        assert!(
            squares
                .iter()
                .zip(&items)
                .all(|(square, n)| *square == n * n)
        );
        for _ in 0..50 {
            // The later one is found sooner.
            let first = first_in_parallel(items.iter(), 3, |n, _| match n {
                70 => {
                    std::thread::yield_now();
                    Some(70)
                }
                71.. => Some(*n),
                _ => None,
            });
            assert_eq!(first, Some(70));
        }
        assert_eq!(first_in_parallel(items.iter(), 3, |_, _| None::<u64>), None);
    }

    #[test]
    fn work_on_what_comes_behind_the_first_is_not_wanted() {
        let both = std::sync::Barrier::new(2);
        let first = first_in_parallel(0..2, 2, |n, wanted| {
            both.wait();
            // The second goes on until the first has given something.
            while n == 1 && wanted.is() {
                std::thread::yield_now();
            }
            (n == 0).then(|| wanted.is())
        });
        assert_eq!(first, Some(true));
    }
}
