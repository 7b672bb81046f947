//! Options of persistent memory, of whichever engine has some.

use pmem::{Domain, Latency};
use volume::{Error, Settings};

/// Takes an option of the memory; `false`: it is none.
///
/// # Errors
/// It cannot have this value.
pub fn set(settings: &mut Settings, name: &str, value: Option<&str>) -> Result<bool, String> {
    match (name, value) {
        ("domain", Some(value)) => {
            let domain: Domain = value.parse().map_err(|e| format!("{e}"))?;
            settings.put("domain", domain);
        }
        ("flush_ns", Some(value)) => put_nanoseconds(settings, "flush_ns", value)?,
        ("fence_ns", Some(value)) => put_nanoseconds(settings, "fence_ns", value)?,
        ("read_ns", Some(value)) => put_nanoseconds(settings, "read_ns", value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn put_nanoseconds(settings: &mut Settings, name: &'static str, value: &str) -> Result<(), String> {
    let ns = value.parse::<u32>();
    match ns.map_err(|_| "use a number of nanoseconds")? {
        0 => settings.remove(name),
        ns => settings.put(name, ns),
    }
    Ok(())
}

/// Whether one of these options was given.
pub fn is_set(settings: &Settings) -> bool {
    let names = ["domain", "flush_ns", "fence_ns", "read_ns"];
    names.into_iter().any(|name| settings.get(name).is_some())
}

/// The memory as these options say.
///
/// # Errors
/// One of them cannot be read.
pub fn options(settings: &Settings) -> volume::Result<pmem::Options> {
    let ns = |name| setting(settings, name, number).map(Option::unwrap_or_default);
    let domain = |text: &str| text.parse::<Domain>().map_err(|e| e.to_string());
    Ok(pmem::Options {
        domain: setting(settings, "domain", domain)?,
        latency: Latency {
            flush_ns: ns("flush_ns")?,
            fence_ns: ns("fence_ns")?,
            read_ns: ns("read_ns")?,
        },
        ..pmem::Options::default()
    })
}

/// A setting as a value; `None`: it is not set.
pub fn setting<T>(
    settings: &Settings,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> volume::Result<Option<T>> {
    let bad = |why| Error::new(format_args!("{name}: {why}"));
    settings.get(name).map(parse).transpose().map_err(bad)
}

/// A number.
///
/// # Errors
/// It is none.
pub fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is not a number"))
}
