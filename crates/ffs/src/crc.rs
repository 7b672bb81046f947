//! Checksums: CRC-32C as the format has it, without the inversions at both ends.

/// The sum of bytes that follow others whose sum is `seed`; the first follow nothing: `!0`.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_checksum_of_its_catalogue_entry_without_the_last_inversion() {
        assert_eq!(crc32c(!0, b"123456789"), !0xE306_9283);
        assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), !0xE306_9283);
    }
}
