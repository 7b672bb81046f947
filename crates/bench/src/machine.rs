//! Where the figures come from.

use std::fmt;
use std::fs;

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
