//! The target `image`: see the module of this name.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| tureen_fuzz::image::run(data));

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    tureen_fuzz::driver::main("image", tureen_fuzz::image::run)
}
