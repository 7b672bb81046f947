//! Random bytes from the system.

use crate::failure::Failure;

/// So many that nobody can guess them.
pub fn bytes() -> Result<[u8; 16], Failure> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Failure::new(format!("no random numbers from the system: {errno}")))?;
    assert_eq!(got, bytes.len(), "the system gives up to 256 bytes at once");
    Ok(bytes)
}
