//! e2fsck as a judge of crash states.

use super::{ENGINE, fsck, settle, snapshots, superblock};
use crate::engine::{Engine, LATER, Others};
use crate::image::Image;
use crate::rules::Rules;
use crate::scratch::Device;
use crate::tree::Flaw;
use e2fsprogs::is_harmless;

/// What e2fsck says of inodes in a list of orphans that it does not free, as it must not write.
const LISTED: [u32; 2] = [0x01_0036, 0x01_0037];

/// The judge: `e2fsck -fn`, by the codes of its log.
pub struct E2fsck;

impl Others for E2fsck {
    fn name(&self) -> &'static str {
        "e2fsck"
    }

    fn is_there(&self) -> bool {
        e2fsprogs::is_there("e2fsck")
    }

    /// What is to be replayed or freed by a mount is, before: e2fsck does not do it without
    /// writing. What is clean then is clean for it; and so is all else behind the check, and what
    /// that leaves to a mount.
    fn judge(&self, image: &Image) -> Result<(), Flaw> {
        let device = Device::of(image, Rules::Sectors);
        settle(&device)?;
        let is_clean = ENGINE.is_clean(&device)?;
        let are_listed = superblock(&device)?.last_orphan.get() != 0;
        let is_allowed = |code| is_harmless(code) || are_listed && LISTED.contains(&code);
        finds(&device, "", &|code| !is_clean && is_allowed(code))?;
        if is_clean {
            return Ok(());
        }
        let report = fsck(&device, true, LATER)?;
        if report.exit_code() > 1 {
            return Err(format!("fsck gives up:\n{report}"));
        }
        settle(&device)?;
        finds(&device, " after fsck", &|_| false)?;
        snapshots::images(&device)?
            .into_iter()
            .try_for_each(|(name, bytes)| {
                finds_in(&bytes, &format!(" in snapshot {name}"), &|_| false)
            })
    }
}

/// Nothing is found but what is allowed.
fn finds(device: &Device, when: &str, is_allowed: &dyn Fn(u32) -> bool) -> Result<(), Flaw> {
    finds_in(&device.image().bytes(), when, is_allowed)
}

fn finds_in(bytes: &[u8], when: &str, is_allowed: &dyn Fn(u32) -> bool) -> Result<(), Flaw> {
    let found = e2fsprogs::problems_in(bytes);
    let found = found.map_err(|error| format!("e2fsck: {error}"))?;
    let codes = found.into_iter().filter(|&code| !is_allowed(code));
    let codes: Vec<String> = codes.map(|code| format!("{code:#08x}")).collect();
    match codes.is_empty() {
        true => Ok(()),
        false => Err(format!("e2fsck{when}: {}", codes.join(", "))),
    }
}
