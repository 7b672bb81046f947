//! Tokens: the name of a crash state, which replays it. `p12.s34` is state `s34` at point 12.

use std::fmt;
use std::str::FromStr;

use super::State;

/// Names a crash state of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// How many events had happened.
    pub point: usize,
    /// What the crash left.
    pub state: State,
}

/// A word that names no crash state, or none of this trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' names no crash state here")]
pub struct BadToken(pub String);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}.", self.point)?;
        match self.state {
            State::Oldest => f.write_str("oldest"),
            State::Newest => f.write_str("newest"),
            State::UpTo(id) => write!(f, "u{id}"),
            State::Only(id) => write!(f, "o{id}"),
            State::Without(id) => write!(f, "w{id}"),
            State::Number(number) => write!(f, "n{number}"),
            State::Random(seed) => write!(f, "r{seed}"),
        }
    }
}

impl FromStr for Token {
    type Err = BadToken;

    fn from_str(word: &str) -> Result<Self, BadToken> {
        parse(word).ok_or_else(|| BadToken(word.to_owned()))
    }
}

fn parse(word: &str) -> Option<Token> {
    let (point, state) = word.strip_prefix('p')?.split_once('.')?;
    let point = point.parse().ok()?;
    let state = match state {
        "oldest" => State::Oldest,
        "newest" => State::Newest,
        _ => {
            let (kind, number) = state.split_at_checked(1)?;
            match kind {
                "u" => State::UpTo(number.parse().ok()?),
                "o" => State::Only(number.parse().ok()?),
                "w" => State::Without(number.parse().ok()?),
                "n" => State::Number(number.parse().ok()?),
                "r" => State::Random(number.parse().ok()?),
                _ => return None,
            }
        }
    };
    Some(Token { point, state })
}
