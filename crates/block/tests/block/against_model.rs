//! Every backend does what an array of bytes does, with many requests in flight.

use std::sync::Arc;

use block::{Buffer, Device, Disk, Random, Ticket, Wave};

use crate::common::{backends, for_seeds, joined};

const SECTORS: u64 = 64;

/// A disk beside the array, and what is in flight.
struct Pair {
    disk: Disk,
    model: Vec<u8>,
    /// Sectors that a request in flight has, what a read of them must yield, and its ticket.
    flying: Vec<(Vec<u64>, Option<Vec<u8>>, Ticket)>,
    random: Random,
}

impl Pair {
    fn new(device: Arc<dyn Device>, seed: u64) -> Pair {
        Pair {
            disk: Disk::new(device),
            model: vec![0; 512 * SECTORS as usize],
            flying: Vec::new(),
            random: Random::new(seed),
        }
    }

    /// Consecutive sectors that nothing in flight has; waits for something if it must.
    fn free_range(&mut self) -> (u64, u64) {
        loop {
            let first = self.random.below(SECTORS);
            let count = 1 + self.random.below((SECTORS - first).min(9));
            let taken = |sector| {
                self.flying
                    .iter()
                    .any(|(sectors, ..)| sectors.contains(&sector))
            };
            if !(first..first + count).any(taken) {
                return (first, count);
            }
            self.land_one();
        }
    }

    /// Waits for a random one of those in flight.
    fn land_one(&mut self) {
        let Some(last) = self.flying.len().checked_sub(1) else {
            return;
        };
        let one = self.random.below(last as u64 + 1) as usize;
        let (_, expected, ticket) = self.flying.swap_remove(one);
        let buffers = ticket.wait().expect("no fault");
        if let Some(expected) = expected {
            assert!(
                joined(&buffers) == expected,
                "a read yields what was written"
            );
        }
    }

    /// Random contents for a range, in buffers of random sizes; the model has them at once.
    fn contents(&mut self, first: u64, count: u64) -> Vec<Buffer> {
        let mut buffers = Vec::new();
        let mut left = count;
        while left > 0 {
            let part = 1 + self.random.below(left);
            let mut buffer = Buffer::zeroed(512 * part as usize);
            buffer.fill_with(|| self.random.number() as u8);
            let at = 512 * (first + count - left) as usize;
            self.model[at..at + buffer.len()].copy_from_slice(&buffer);
            buffers.push(buffer);
            left -= part;
        }
        buffers
    }

    fn step(&mut self) {
        let (first, count) = self.free_range();
        let at = 512 * first;
        let range = at as usize..512 * (first + count) as usize;
        let sectors: Vec<u64> = (first..first + count).collect();
        match self.random.below(10) {
            0..=2 => {
                let into = vec![Buffer::zeroed(512 * count as usize)];
                let expected = self.model[range].to_vec();
                let ticket = self.disk.submit_read(at, into);
                self.flying.push((sectors, Some(expected), ticket));
            }
            3..=5 => {
                let from = self.contents(first, count);
                let ticket = self.disk.submit_write(at, from);
                self.flying.push((sectors, None, ticket));
            }
            6 => {
                let (mut wave, mut at) = (Wave::new(), at);
                for buffer in self.contents(first, count) {
                    let len = buffer.len() as u64;
                    wave.write(at, buffer);
                    at += len;
                }
                match self.random.one_in(2) {
                    true => {
                        let ticket = self.disk.submit_wave(wave);
                        self.flying.push((sectors, None, ticket));
                    }
                    false => {
                        let tickets = self.disk.submit_writes(wave);
                        let several = tickets
                            .into_iter()
                            .map(|ticket| (sectors.clone(), None, ticket));
                        self.flying.extend(several);
                    }
                }
            }
            7 => {
                let ticket = self.disk.submit_flush();
                self.flying.push((Vec::new(), None, ticket));
            }
            8 => {
                self.disk.zero(at, 512 * count).expect("this host can");
                self.model[range].fill(0);
            }
            _ => self.in_the_foreground(first, count),
        }
    }

    fn in_the_foreground(&mut self, first: u64, count: u64) {
        let (at, len) = (512 * first, 512 * count);
        let range = at as usize..(at + len) as usize;
        match self.random.below(4) {
            0 => {
                let from = self.contents(first, count);
                self.disk.write(at, from).expect("no fault");
                self.disk.flush().expect("no fault");
            }
            1 => {
                let mut wave = Wave::new();
                for (i, sector) in joined(&self.contents(first, count)).chunks(512).enumerate() {
                    // Every second one, so that they are no neighbours.
                    if i % 2 == 0 {
                        wave.write(at + 512 * i as u64, Buffer::copy_of(sector));
                    } else {
                        let rest = vec![Buffer::copy_of(sector)];
                        self.disk
                            .write(at + 512 * i as u64, rest)
                            .expect("no fault");
                    }
                }
                self.disk.commit(wave).expect("no fault");
            }
            2 => {
                let into = vec![Buffer::zeroed(len as usize)];
                let read = joined(&self.disk.read(at, into).expect("no fault"));
                assert!(read == self.model[range], "a read yields what was written");
            }
            _ => {
                self.disk.allocate(at, len).expect("there is space");
                self.disk.discard(at, len).expect("this host can");
                let from = self.contents(first, count);
                self.disk.write(at, from).expect("no fault");
            }
        }
    }

    fn finish(mut self) {
        while !self.flying.is_empty() {
            self.land_one();
        }
        let into = vec![Buffer::zeroed(self.model.len())];
        let all = joined(&self.disk.read(0, into).expect("no fault"));
        assert!(all == self.model, "the device holds what was written");
        assert_eq!(self.disk.stats().in_flight, 0);
        assert_eq!(self.disk.poisoned(), None);
    }
}

#[test]
fn every_backend_holds_what_was_written() {
    for_seeds(8, |seed| {
        for backend in backends(512 * SECTORS) {
            let mut pair = Pair::new(backend.device.clone(), seed);
            for _ in 0..400 {
                pair.step();
                if pair.random.one_in(3) {
                    pair.land_one();
                }
            }
            pair.finish();
        }
    });
}

#[test]
fn a_write_of_more_buffers_than_the_kernel_takes_at_once_is_whole() {
    const COUNT: u64 = 2500;
    for backend in backends(512 * COUNT) {
        let disk = Disk::new(backend.device);
        let from = (0..COUNT).map(|i| Buffer::copy_of(&[i as u8, (i >> 8) as u8, 1]));
        let from = disk.write(0, from.collect()).expect("no fault");
        disk.flush().expect("no fault");
        let into = (0..COUNT).map(|_| Buffer::zeroed(512)).collect();
        let read = disk.read(0, into).expect("no fault");
        assert!(joined(&read) == joined(&from), "{}", disk.info().how);
    }
}
