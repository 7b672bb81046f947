//! Where the figures come from.

use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// What a figure depends on that is not ours.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Under a hypervisor.
    pub virtual_machine: bool,
    /// Processes that were running or waiting for a core, averaged over the last minute, when the
    /// runs began: above 0.5 the machine was not ours alone.
    pub load: f64,
}

/// A load that is only this program's own start.
const LOAD_MAX: f64 = 0.5;

/// Linux's resident set and page sizes, from `/proc`.
const PAGE: u64 = 4096;

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':'))
                .map_or("", |(_, value)| value.trim())
        };
        let loadavg = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Machine {
            processor: format!(
                "{}, family {} model {}",
                field("model name"),
                field("cpu family"),
                field("model\t")
            ),
            cores: cores(),
            memory: rustix::system::sysinfo().totalram as u64,
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            virtual_machine: field("flags").split(' ').any(|flag| flag == "hypervisor"),
            load: loadavg
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let virtual_machine = if self.virtual_machine {
            ", virtual machine"
        } else {
            ""
        };
        write!(
            f,
            "{}; {} cores, {:.0} GiB{virtual_machine}; Linux {}; load {} at the start{}",
            self.processor,
            self.cores,
            self.memory as f64 / f64::from(1 << 30),
            self.kernel,
            self.load,
            if self.load > LOAD_MAX {
                ": others used the machine too, times are coarse"
            } else {
                ""
            }
        )
    }
}

/// The day, as `2026-01-31` (UTC).
pub fn today() -> String {
    const DAY: u64 = 24 * 60 * 60;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let (year, month, day) = date(now.map_or(0, |time| time.as_secs()) / DAY);
    format!("{year}-{month:02}-{day:02}")
}

/// Year, month and day, so many days after 1 January 1970 (Gregorian calendar).
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March, so that the day that some lack is their last; 400 years are 146,097
    // days, and 1 March of year 0 is 719,468 days before 1970.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Months from March on: five of them are 153 days.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + next, month, day)
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Anonymous memory of this process that is resident, in bytes: without the pages of mapped
/// images.
pub fn dram() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut fields = statm
        .split(' ')
        .skip(1)
        .map(|field| field.parse::<u64>().unwrap_or(0));
    let (resident, shared) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
    resident.saturating_sub(shared) * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates_in_leap_years_too() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(11_017), (2000, 3, 1));
        assert_eq!(date(20_453), (2025, 12, 31));
    }
}
