//! The hashes of names by which the kernel finds them in large directories: three kinds, with names
//! as signed or unsigned characters, and a seed.

/// How names of a directory are hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As the first versions did.
    Legacy,
    /// The first rounds of MD4.
    HalfMd4,
    /// The tiny encryption algorithm.
    Tea,
}

impl Kind {
    /// By its number in an index.
    pub fn of(number: u8) -> Option<Kind> {
        match number {
            0 => Some(Kind::Legacy),
            1 => Some(Kind::HalfMd4),
            2 => Some(Kind::Tea),
            _ => None,
        }
    }
}

/// What hashes begin with, where there is no seed.
const START: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// What an image says of hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hashes {
    /// The seed; zeros: none.
    pub seed: [u8; 16],
    /// Characters have no sign.
    pub is_unsigned: bool,
}

impl Hashes {
    /// The hash of a name: an even number.
    pub fn of(&self, kind: Kind, name: &[u8]) -> u32 {
        let mut state = START;
        if self.seed != [0; 16] {
            for (to, bytes) in state.iter_mut().zip(self.seed.chunks_exact(4)) {
                *to = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
            }
        }
        let hash = match kind {
            Kind::Legacy => self.legacy(name),
            Kind::HalfMd4 => {
                for (chunk, left) in chunks(name, 32) {
                    half_md4(&mut state, &self.words::<8>(chunk, left));
                }
                state[1]
            }
            Kind::Tea => {
                for (chunk, left) in chunks(name, 16) {
                    tea(&mut state, self.words::<4>(chunk, left));
                }
                state[0]
            }
        };
        hash & !1
    }

    fn character(&self, byte: u8) -> u32 {
        match self.is_unsigned {
            true => byte.into(),
            false => byte as i8 as u32,
        }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut last, mut before) = (0x12A3_FE2D_u32, 0x37AB_E8F9_u32);
        for &byte in name {
            let product = self.character(byte).wrapping_mul(7_152_373);
            let mut next = before.wrapping_add(last ^ product);
            if next & 0x8000_0000 != 0 {
                next = next.wrapping_sub(0x7FFF_FFFF);
            }
            (before, last) = (last, next);
        }
        last << 1
    }

    /// The characters of a part of a name, of which `left` bytes are left, four in a word; behind
    /// them words of that length.
    fn words<const N: usize>(&self, chunk: &[u8], left: usize) -> [u32; N] {
        let pad = (left as u32 & 0xFF) * 0x0101_0101;
        let mut words = [pad; N];
        for (word, bytes) in words.iter_mut().zip(chunk.chunks(4)) {
            let shift = |word: u32, &byte: &u8| (word << 8).wrapping_add(self.character(byte));
            *word = bytes.iter().fold(pad, shift);
        }
        words
    }
}

/// A name in parts of so many bytes, each with how many are left there.
fn chunks(name: &[u8], len: usize) -> impl Iterator<Item = (&[u8], usize)> {
    let lefts = (0..name.len()).step_by(len).map(|at| name.len() - at);
    name.chunks(len).zip(lefts)
}

/// What the second and third of its rounds add.
const ROOT_OF_2: u32 = 0x5A82_7999;
const ROOT_OF_3: u32 = 0x6ED9_EBA1;

/// MD4 with half of its steps.
fn half_md4(state: &mut [u32; 4], words: &[u32; 8]) {
    let choose = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    let majority = |x: u32, y: u32, z: u32| (x & y) | (z & (x ^ y));
    let parity = |x: u32, y: u32, z: u32| x ^ y ^ z;
    let mut now = *state;
    let mut round =
        |mix: &dyn Fn(u32, u32, u32) -> u32, order: [usize; 8], more, shifts: [u32; 4]| {
            for (step, word) in order.into_iter().enumerate() {
                // The words change in turn: first, last, third, second.
                let at = (4 - step % 4) % 4;
                let [x, y, z] = [1, 2, 3].map(|next| now[(at + next) % 4]);
                let sum = mix(x, y, z).wrapping_add(words[word]);
                let sum = now[at].wrapping_add(sum).wrapping_add(more);
                now[at] = sum.rotate_left(shifts[step % 4]);
            }
        };
    round(&choose, [0, 1, 2, 3, 4, 5, 6, 7], 0, [3, 7, 11, 19]);
    round(
        &majority,
        [1, 3, 5, 7, 0, 2, 4, 6],
        ROOT_OF_2,
        [3, 5, 9, 13],
    );
    round(&parity, [3, 7, 2, 6, 1, 5, 0, 4], ROOT_OF_3, [3, 9, 11, 15]);
    for (word, now) in state.iter_mut().zip(now) {
        *word = word.wrapping_add(now);
    }
}

fn tea(state: &mut [u32; 4], [a, b, c, d]: [u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let (mut first, mut second, mut sum) = (state[0], state[1], 0_u32);
    let mix = |word: u32, low: u32, high: u32, sum: u32| {
        (word << 4).wrapping_add(low) ^ word.wrapping_add(sum) ^ (word >> 5).wrapping_add(high)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        first = first.wrapping_add(mix(second, a, b, sum));
        second = second.wrapping_add(mix(first, c, d, sum));
    }
    state[0] = state[0].wrapping_add(first);
    state[1] = state[1].wrapping_add(second);
}
