//! Random choices that a seed replays: the one generator of the project, for crash states here,
//! and for tests, explorations and measurements everywhere.

/// A small generator (SplitMix64): the same seed gives the same choices in every version. Not for
/// secrets.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of these.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of seed 1234567, as the author of SplitMix64 gives them: tokens and seeds
    /// of earlier versions rely on it.
    #[test]
    fn a_seed_gives_the_numbers_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        let numbers = [(); 3].map(|()| random.number());
        let known = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(numbers, known);
    }

    #[test]
    fn numbers_below_an_end_reach_all_of_them() {
        let mut random = Random::new(7);
        let mut seen = [false; 10];
        (0..1000).for_each(|_| seen[random.below(10) as usize] = true);
        assert_eq!(seen, [true; 10]);
        assert_eq!(random.below(0), 0);
    }
}
