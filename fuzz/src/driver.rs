//! The targets without libFuzzer, for a compiler that has no sanitizers: random inputs for a
//! bounded time, or given ones again.
//!
//! ```text
//! image [--seconds N] [--count N] [--seed S]   random inputs from a seed on; one that fails is
//!                                              written to a file
//! image FILE...                                these inputs
//! ```

use block::Random;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longest random input.
const LEN_MAX: u64 = 600;
/// How long random inputs are run if nothing else is said.
const SECONDS: u64 = 30;
/// What takes longer hangs.
const HANG: Duration = Duration::from_secs(30);

/// The input of a seed.
fn input(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let len = random.below(LEN_MAX + 1);
    (0..len).map(|_| random.number() as u8).collect()
}

/// The program of a target.
pub fn main(name: &str, target: fn(&[u8])) -> ExitCode {
    let mut files = Vec::new();
    let (mut seconds, mut count, mut seed) = (None, None, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let number = match arg.as_str() {
            "--seconds" => &mut seconds,
            "--count" => &mut count,
            "--seed" => &mut seed,
            _ => {
                files.push(PathBuf::from(arg));
                continue;
            }
        };
        let Some(value) = args.next().and_then(|value| value.parse().ok()) else {
            eprintln!("{arg} wants a number");
            return ExitCode::from(2);
        };
        *number = Some(value);
    }
    if !files.is_empty() {
        return given(target, &files);
    }
    let default = count.is_none().then_some(SECONDS);
    let time = seconds.or(default).map(Duration::from_secs);
    random(name, target, seed.unwrap_or(1), time, count)
}

fn given(target: fn(&[u8]), files: &[PathBuf]) -> ExitCode {
    for file in files {
        match std::fs::read(file) {
            Ok(input) => target(&input),
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                return ExitCode::from(2);
            }
        }
        println!("{}: nothing wrong", file.display());
    }
    ExitCode::SUCCESS
}

fn random(
    name: &str,
    target: fn(&[u8]),
    first: u64,
    time: Option<Duration>,
    count: Option<u64>,
) -> ExitCode {
    let start = Instant::now();
    let now = Arc::new(AtomicU64::new(first));
    watch(now.clone());
    let mut seed = first;
    while time.is_none_or(|time| start.elapsed() < time) && count != Some(seed - first) {
        now.store(seed, Relaxed);
        let input = input(seed);
        if catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
            let file = format!("{name}-{seed}");
            match std::fs::write(&file, &input) {
                Ok(()) => eprintln!(
                    "seed {seed} fails; its input is in {file}: `{name} {file}` runs it again"
                ),
                Err(error) => eprintln!("seed {seed} fails; {file}: {error}"),
            }
            return ExitCode::FAILURE;
        }
        seed += 1;
    }
    println!(
        "{name}: {} random inputs, seeds from {first} on, nothing wrong",
        seed - first
    );
    ExitCode::SUCCESS
}

/// Ends the program when one input takes too long.
fn watch(now: Arc<AtomicU64>) {
    std::thread::spawn(move || {
        loop {
            let before = now.load(Relaxed);
            std::thread::sleep(HANG);
            if now.load(Relaxed) == before {
                eprintln!("seed {before} hangs");
                std::process::abort();
            }
        }
    });
}
