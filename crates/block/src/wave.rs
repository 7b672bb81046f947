//! Waves: writes that are in flight together, with one flush behind them.

use crate::Buffer;
use crate::device::Request;

/// The longest write that neighbours are merged into.
const MERGED_BYTES_MAX: u64 = 1 << 20;

/// Writes without an order among each other, to be durable together when the wave completes. A
/// crash before that leaves any subset of their sectors.
#[derive(Debug, Default)]
pub struct Wave {
    writes: Vec<(u64, Vec<Buffer>)>,
}

impl Wave {
    /// No writes: a flush.
    pub fn new() -> Wave {
        Wave::default()
    }

    /// Adds a write of `buffer` at byte `at`.
    pub fn write(&mut self, at: u64, buffer: Buffer) {
        self.writes.push((at, vec![buffer]));
    }

    /// How many writes were added.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether it is only a flush.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// One request for each run of neighbours, in the order of the device.
    ///
    /// # Panics
    /// If two writes overlap: a device does not say which would win.
    pub(crate) fn into_requests(mut self) -> Vec<Request> {
        self.writes.sort_by_key(|(at, _)| *at);
        let mut runs: Vec<(u64, u64, Vec<Buffer>)> = Vec::new();
        for (at, mut buffers) in self.writes {
            let len: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
            match runs.last_mut() {
                Some((_, end, _)) if *end > at => panic!("two writes of a wave overlap at {at}"),
                Some((start, end, run)) if *end == at && at + len - *start <= MERGED_BYTES_MAX => {
                    *end += len;
                    run.append(&mut buffers);
                }
                _ => runs.push((at, at + len, buffers)),
            }
        }
        let request = |(at, _, from)| Request::Write {
            at,
            from,
            flush: false,
        };
        runs.into_iter().map(request).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(at: &[u64]) -> Wave {
        let mut wave = Wave::new();
        for &at in at {
            wave.write(at, Buffer::zeroed(512));
        }
        wave
    }

    #[test]
    fn neighbours_become_one_request() {
        let requests = wave(&[1024, 4096, 512, 1536]).into_requests();
        let actions = requests.iter().map(|request| {
            let action = request.action();
            (action.at, action.len)
        });
        assert_eq!(actions.collect::<Vec<_>>(), [(512, 1536), (4096, 512)]);
    }

    #[test]
    #[should_panic(expected = "two writes of a wave overlap at 512")]
    fn overlapping_writes_are_a_mistake() {
        wave(&[512, 512]).into_requests();
    }
}
