//! What the name of a database asks for: its parameters.

use pmem::Domain;
use soupfs::Mode;

use crate::images::OpenError;

/// The parameters of a name, as `file:demo.img/app.db?vfs=tureen&durability=sync` has them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// `durability`: how the image is mounted; `None`: as it is, or `strong`.
    pub mode: Option<Mode>,
    /// `domain`: what the medium promises; `None`: as it is open, or what is detected.
    pub domain: Option<Domain>,
    /// `pending`: bytes that a transaction may change.
    pub pending_max: Option<usize>,
}

impl Parameters {
    /// By a function that knows the value of a parameter.
    ///
    /// # Errors
    /// A value that it cannot have.
    pub fn of<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Result<Parameters, OpenError> {
        let mode = match value("durability") {
            None => None,
            Some("strong") => Some(Mode::Strong),
            Some("sync") => Some(Mode::Sync),
            Some("delayed") => Some(Mode::Delayed),
            Some(other) => {
                let why = format!("durability={other}: use strong, sync or delayed");
                return Err(OpenError::Parameter(why));
            }
        };
        let domain = |text: &str| {
            let why = |why| OpenError::Parameter(format!("domain={text}: {why}"));
            text.parse::<Domain>().map_err(why)
        };
        let domain = value("domain").map(domain).transpose()?;
        let bytes = |text: &str| {
            let why = || format!("pending={text}: use a number of bytes");
            text.parse().map_err(|_| OpenError::Parameter(why()))
        };
        let pending_max = value("pending").map(bytes).transpose()?;
        Ok(Parameters {
            mode,
            domain,
            pending_max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_say_what_is_wrong_with_them() {
        let of = |name, value| Parameters::of(|asked| (asked == name).then_some(value));
        assert_eq!(
            of("durability", "sync").expect("one").mode,
            Some(Mode::Sync)
        );
        assert_eq!(of("pending", "4096").expect("one").pending_max, Some(4096));
        assert_eq!(of("other", "4096").expect("none"), Parameters::default());
        let line = of("domain", "line").expect("one").domain;
        assert_eq!(line, Some(Domain::Line));
        for (name, value) in [
            ("durability", "full"),
            ("domain", "byte"),
            ("pending", "many"),
        ] {
            let why = of(name, value).expect_err("refused").to_string();
            assert!(why.starts_with(name) && why.contains("use"), "{why}");
        }
    }
}
