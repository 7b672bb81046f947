//! Work that is done in parts, by several threads.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use vfs::Error;

/// More threads than this wait for memory.
const THREADS_MAX: usize = 8;

/// Does `work` for each of the first so many numbers, and hands back what it makes of them, in
/// order. `told` is called now and then, by the caller's thread, with how many were begun.
pub(super) fn each<T: Send>(
    count: u32,
    told: &dyn Fn(u32),
    work: &(dyn Fn(u32) -> Result<T, Error> + Sync),
) -> Result<Vec<T>, Error> {
    let threads = match count {
        // Nobody asks the system how many there could be, which costs more than a small image.
        0 | 1 => 1,
        _ => {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            processors.min(THREADS_MAX).min(count as usize)
        }
    };
    let next = AtomicU32::new(0);
    let run = |told: &dyn Fn(u32)| {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(done);
            }
            told(number);
            match work(number) {
                Ok(made) => done.push((number, made)),
                Err(error) => {
                    // Nobody begins any more.
                    next.store(count, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let mut all = thread::scope(|scope| {
        let run = &run;
        let others = (1..threads).map(|_| scope.spawn(move || run(&|_| ())));
        let others: Vec<_> = others.collect();
        let mut all = run(told);
        for other in others {
            let done = other.join().unwrap_or_else(|panic| resume_unwind(panic));
            all = all.and_then(|mut all| {
                all.extend(done?);
                Ok(all)
            });
        }
        all
    })?;
    all.sort_unstable_by_key(|&(number, _)| number);
    Ok(all.into_iter().map(|(_, made)| made).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_an_error_ends_it() {
        let made = each(1000, &|_| (), &|number| Ok(number * 2)).expect("no error");
        assert_eq!(made, (0..1000).map(|number| number * 2).collect::<Vec<_>>());
        let failed = each(1000, &|_| (), &|number| match number {
            70 => Err(Error::medium("gone")),
            number => Ok(number),
        });
        assert_eq!(failed, Err(Error::medium("gone")));
        assert_eq!(each(0, &|_| (), &Ok), Ok(Vec::new()));
    }
}
