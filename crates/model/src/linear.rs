//! Whether some order of operations explains a history of threads: linearizability, and across a
//! crash durable linearizability.
//!
//! The search is that of Wing and Gong ("Testing and verifying concurrent objects", 1993): of the
//! operations that may be next each is tried on the sequential model, and what returns something
//! else is given up. No state is gone on from twice (Lowe, "Testing for linearizability", 2017).
//!
//! An operation that has not returned, because a crash came before, may have taken effect at any
//! time since it was called, or not at all (Izraelevitz, Mendes and Scott, "Linearizability of
//! persistent memory objects under a full-system-crash failure model", 2016).

use std::collections::HashSet;
use std::hash::Hash;

/// What operations do one after another: the state of a sequential model.
pub trait Sequential: Clone + Eq + Hash {
    /// An operation.
    type Op;
    /// What it returns.
    type Answer: PartialEq;

    /// Do an operation.
    fn run(&mut self, op: &Self::Op) -> Self::Answer;
}

/// An operation of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<O, A> {
    /// What was called.
    pub op: O,
    /// When. Times are numbers of which no two in a history are the same.
    pub called: u64,
    /// When it returned, and what; `None`: it had not.
    pub returned: Option<(u64, A)>,
}

/// Calls of each thread, in order. Only the last one of a thread may not have returned.
pub type History<S> = [Vec<Call<<S as Sequential>::Op, <S as Sequential>::Answer>>];

/// Whether there is an order of calls that explains a history and what was there behind it: it has
/// all calls that returned and some of those that had not; none comes before one that had returned
/// when it was called; each returns on the model what it returned; and `accepts` the state at the
/// end.
///
/// # Panics
/// A thread called something before its last call had returned.
pub fn explains<S: Sequential>(
    start: &S,
    history: &History<S>,
    accepts: impl Fn(&S) -> bool,
) -> bool {
    for calls in history {
        let last = calls.split_last().map_or(&calls[..], |(_, rest)| rest);
        assert!(last.iter().all(|call| call.returned.is_some()));
    }
    let mut search = Search {
        history,
        accepts,
        tried: HashSet::new(),
    };
    search.goes_on(&mut vec![0; history.len()], start)
}

struct Search<'h, S: Sequential, A> {
    history: &'h History<S>,
    accepts: A,
    /// How many calls of each thread were done, and what was there then: no order was found from
    /// there.
    tried: HashSet<(Vec<usize>, S)>,
}

impl<S: Sequential, A: Fn(&S) -> bool> Search<'_, S, A> {
    /// `done`: calls of each thread; `state`: behind them.
    fn goes_on(&mut self, done: &mut Vec<usize>, state: &S) -> bool {
        if !self.tried.insert((done.clone(), state.clone())) {
            return false;
        }
        let history = self.history;
        let next = |done: &[usize], thread: usize| history[thread].get(done[thread]);
        let left = (0..history.len()).filter_map(|thread| next(done, thread));
        let returns = left.filter_map(|call| call.returned.as_ref().map(|(at, _)| *at));
        let first = returns.min();
        if first.is_none() && (self.accepts)(state) {
            return true;
        }
        for thread in 0..history.len() {
            let in_time = |called: u64| first.is_none_or(|first| called < first);
            let Some(call) = next(done, thread).filter(|call| in_time(call.called)) else {
                continue;
            };
            let mut behind = state.clone();
            let answer = behind.run(&call.op);
            if matches!(&call.returned, Some((_, found)) if *found != answer) {
                continue;
            }
            done[thread] += 1;
            if self.goes_on(done, &behind) {
                return true;
            }
            done[thread] -= 1;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that is set and read.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Register(u8);

    #[derive(Debug, Clone, Copy)]
    enum Op {
        Set(u8),
        /// Set it, and tell what it was.
        Swap(u8),
        Get,
    }

    impl Sequential for Register {
        type Op = Op;
        type Answer = u8;

        fn run(&mut self, op: &Op) -> u8 {
            match *op {
                Op::Set(value) => {
                    self.0 = value;
                    0
                }
                Op::Swap(value) => std::mem::replace(&mut self.0, value),
                Op::Get => self.0,
            }
        }
    }

    fn call(op: Op, called: u64, returned: u64, answer: u8) -> Call<Op, u8> {
        let returned = Some((returned, answer));
        Call {
            op,
            called,
            returned,
        }
    }

    fn pending(op: Op, called: u64) -> Call<Op, u8> {
        let returned = None;
        Call {
            op,
            called,
            returned,
        }
    }

    fn left(history: &History<Register>) -> Vec<u8> {
        let leaves = |value: &u8| explains(&Register(0), history, |state| state.0 == *value);
        (0..10).filter(leaves).collect()
    }

    #[test]
    fn calls_that_meet_come_in_either_order() {
        let set = |value, called| vec![call(Op::Set(value), called, 10, 0)];
        assert_eq!(left(&[set(1, 0), set(2, 1)]), [1, 2]);
        let set = [vec![call(Op::Set(1), 0, 1, 0)], set(2, 2)];
        assert_eq!(left(&set), [2], "the first had returned");
        assert_eq!(left(&[]), [0]);
    }

    #[test]
    fn who_looks_sees_old_or_new_and_nothing_older_later() {
        let set = vec![call(Op::Set(1), 0, 9, 0)];
        let looks = |first, then| vec![call(Op::Get, 1, 2, first), call(Op::Get, 3, 4, then)];
        for (first, then) in [(0, 0), (0, 1), (1, 1)] {
            assert_eq!(left(&[set.clone(), looks(first, then)]), [1]);
        }
        assert!(left(&[set.clone(), looks(1, 0)]).is_empty());
        assert!(left(&[set, looks(0, 2)]).is_empty(), "from nowhere");
        let late = [
            vec![call(Op::Set(1), 0, 1, 0)],
            vec![call(Op::Get, 2, 3, 0)],
        ];
        assert!(left(&late).is_empty(), "it had returned");
    }

    #[test]
    fn of_two_that_swap_one_is_first() {
        let swaps = |one, two| {
            [
                vec![call(Op::Swap(1), 0, 5, one)],
                vec![call(Op::Swap(2), 1, 6, two)],
            ]
        };
        assert_eq!(left(&swaps(0, 1)), [2]);
        assert_eq!(left(&swaps(2, 0)), [1]);
        assert!(left(&swaps(0, 0)).is_empty(), "a lost update");
        assert!(left(&swaps(2, 1)).is_empty(), "each behind the other");
    }

    #[test]
    fn what_had_not_returned_is_there_or_not() {
        let set = vec![pending(Op::Set(1), 0)];
        assert_eq!(left(std::slice::from_ref(&set)), [0, 1]);
        let seen = vec![call(Op::Get, 1, 2, 1)];
        assert_eq!(left(&[set.clone(), seen]), [1], "it was seen");
        let not_seen = vec![call(Op::Get, 1, 2, 0)];
        assert_eq!(left(&[set.clone(), not_seen]), [0, 1]);
        let returned = vec![call(Op::Set(2), 1, 2, 0)];
        assert_eq!(left(&[set, returned]), [1, 2]);
        let before = vec![call(Op::Get, 0, 1, 1)];
        let late = vec![pending(Op::Set(1), 2)];
        assert!(
            left(&[before, late]).is_empty(),
            "seen before it was called"
        );
    }

    #[test]
    fn no_state_is_gone_on_from_twice() {
        // 24 calls that all meet: 24! orders, but few states.
        let threads: Vec<_> = (0..12)
            .map(|n| vec![call(Op::Set(1), n, 100, 0), call(Op::Set(1), 200, 300, 0)])
            .collect();
        assert_eq!(left(&threads), [1]);
    }
}
