//! Work on several threads, whose result is as if there were one.

use parking_lot::Mutex;

/// Do this with each, on so many threads.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    jobs: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let done = Mutex::new(Vec::new());
    let one = |(i, item)| {
        let result = work(item);
        done.lock().push((i, result));
        None::<()>
    };
    first_in_parallel(items.iter().enumerate(), jobs, one);
    let mut done = done.into_inner();
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// What the first of these gives that gives something, whoever of so many threads is faster. Then
/// no more are tried.
pub fn first_in_parallel<T, R: Send>(
    items: impl Iterator<Item = T> + Send,
    jobs: usize,
    work: impl Fn(T) -> Option<R> + Sync,
) -> Option<R> {
    let next = Mutex::new(Some(items.enumerate()));
    let first: Mutex<Option<(usize, R)>> = Mutex::new(None);
    let work_on = || {
        loop {
            // What comes before the item that is taken was taken, too, and is tried to its end.
            let Some((i, item)) = next.lock().as_mut().and_then(Iterator::next) else {
                return;
            };
            let Some(result) = work(item) else { continue };
            *next.lock() = None;
            let mut first = first.lock();
            if first.as_ref().is_none_or(|(before, _)| i < *before) {
                *first = Some((i, result));
            }
        }
    };
    std::thread::scope(|s| (0..jobs.max(1)).for_each(|_| drop(s.spawn(work_on))));
    first.into_inner().map(|(_, result)| result)
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
            let first = first_in_parallel(items.iter(), 3, |n| match n {
                70 => {
                    std::thread::yield_now();
                    Some(70)
                }
                71.. => Some(*n),
                _ => None,
            });
            assert_eq!(first, Some(70));
        }
        assert_eq!(first_in_parallel(items.iter(), 3, |_| None::<u64>), None);
    }
}
