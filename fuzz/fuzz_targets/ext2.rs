//! The target `ext2`: see the module of this name.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| tureen_fuzz::ext2::run(data));

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    tureen_fuzz::driver::main("ext2", tureen_fuzz::ext2::run)
}
