//! What an image holds that is nobody's here: for the message.

use std::io;

use crate::Image;

/// How much of the beginning is looked at for anything at all.
const HEAD: usize = 4096;

/// Signatures: where, what, and what that is.
const SIGNATURES: &[(u64, &[u8], &str)] = &[
    (0, b"XFSB", "holds an XFS file system"),
    (0x1_0040, b"_BHRfS_M", "holds a btrfs file system"),
    (
        0x400,
        &[0x10, 0x20, 0xF5, 0xF2],
        "holds an F2FS file system",
    ),
    (0, b"hsqs", "holds a squashfs file system"),
    (0x8001, b"CD001", "holds an ISO 9660 file system"),
    (3, b"NTFS    ", "holds an NTFS file system"),
    (54, b"FAT", "holds a FAT file system"),
    (82, b"FAT32", "holds a FAT file system"),
    (4086, b"SWAPSPACE2", "is swap space"),
    (0, b"LUKS\xba\xbe", "is encrypted (LUKS)"),
    (0, b"QFI\xfb", "is the disk of a virtual machine (qcow2)"),
    (512, b"EFI PART", "is a disk with partitions (GPT)"),
    (0, b"\x1f\x8b", "is compressed (gzip)"),
    (0, b"\xfd7zXZ", "is compressed (xz)"),
    (0, b"\x28\xb5\x2f\xfd", "is compressed (zstd)"),
    (0, b"PK\x03\x04", "is an archive (zip)"),
    (257, b"ustar", "is an archive (tar)"),
    (0, b"\x7fELF", "is a program"),
    (0, b"SQLite format 3\0", "is an SQLite database"),
    // After those that begin with a boot sector as well.
    (510, &[0x55, 0xAA], "is a disk with partitions (MBR)"),
];

/// What the image holds, as the end of a sentence: as far as can be told.
pub(crate) fn contents(image: &Image) -> io::Result<&'static str> {
    if image.is_empty() {
        return Ok("is empty");
    }
    for (at, signature, what) in SIGNATURES {
        let found = image.bytes::<16>(*at)?;
        if found.starts_with(signature) {
            return Ok(what);
        }
    }
    let head = image.bytes::<HEAD>(0)?;
    let head = &head[..HEAD.min(image.len() as usize)];
    Ok(if head.iter().all(|&byte| byte == 0) {
        "begins with zeros, as one that nobody has formatted"
    } else if is_text(head) {
        "holds text"
    } else {
        "has no magic number that is known here"
    })
}

fn is_text(bytes: &[u8]) -> bool {
    // A character may be cut off at the end.
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if bytes.len() - error.valid_up_to() < 4 => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !text.chars().any(|c| c.is_control() && !c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(len: usize, parts: &[(u64, &[u8])]) -> &'static str {
        let mut bytes = vec![0; len];
        for (at, part) in parts {
            bytes[*at as usize..][..part.len()].copy_from_slice(part);
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), bytes).expect("write");
        let image = Image::open(file.path()).expect("open");
        contents(&image).expect("read")
    }

    #[test]
    fn what_others_made_is_told() {
        let len = 1 << 17;
        for (at, signature, what) in SIGNATURES {
            assert_eq!(of(len, &[(*at, signature)]), *what);
        }
    }

    #[test]
    fn what_nobody_made_is_told_as_far_as_it_goes() {
        assert_eq!(of(0, &[]), "is empty");
        assert!(of(9, &[]).contains("zeros"));
        assert_eq!(of(5, &[(0, "grün".as_bytes())]), "holds text");
        assert_eq!(of(3, &[(0, &"grün".as_bytes()[..3])]), "holds text");
        assert!(of(9, &[(0, &[1, 2, 3])]).contains("magic"));
    }
}
