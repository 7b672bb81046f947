//! The target `cache`: see the module of this name.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| tureen_fuzz::cache::run(data));

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    tureen_fuzz::driver::main("cache", tureen_fuzz::cache::run)
}
