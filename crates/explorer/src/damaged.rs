//! Repairs that are cut short. A clean image is damaged in one place; `fsck` repairs it, recorded;
//! and whatever a crash leaves of that, a further repair must end sound, with nothing lost that the
//! whole repair keeps.
//!
//! The engine says what can be damaged ([`crate::engine::Engine::damage`]).

use crate::engine::{Engine, LATER, Subject};
use crate::image::Image;
use crate::parallel::Until;
use crate::rules::Rules;
use crate::run::Run;
use crate::scratch::{Device, Scratch};
use crate::states::{Crash, Explored, Explorer, Sampling};
use crate::trace::Event;
use crate::tree::{Flaw, Id, Object, Tree};
use crate::workload::Workload;
use block::Random;
use std::collections::BTreeMap;

/// Where repairs put what has lost its name.
const LOST: &[u8] = b"lost+found";
/// Of so many states one has the repair that follows interrupted as well.
const DEEPER: u64 = 97;

/// The image that a workload leaves when it is unmounted, and its tree.
pub(crate) fn unmounted(workload: &Workload, rules: Rules) -> Result<(Image, Tree), Flaw> {
    let plain = Workload {
        damage: None,
        ..workload.clone()
    };
    let run = Run::record(plain, rules, false)?;
    let mut scratch = run.subject().scratch(run.start.clone());
    scratch.apply(&run.events);
    let tree = &run.steps[run.steps.len() - 1].durable;
    Ok((scratch.image(&Vec::new()), tree.clone()))
}

/// Damage what a workload leaves, and explore the crashes of its repair.
///
/// # Errors
/// What is wrong.
pub fn explore(workload: &Workload, rules: Rules, sampling: Sampling) -> Result<Explored, Flaw> {
    let engine = workload.engine;
    let subject = Subject { engine, rules };
    let (image, tree) = unmounted(workload, rules)?;
    let device = subject.device(&image);
    let number = workload.damage.unwrap_or(0);
    let Some(name) = engine.damage(number, &device, &tree) else {
        return Ok(Explored::inapplicable()); // fewer operations than the family's
    };
    let fail = |what: Flaw| format!("damage: {name}: {what}");
    let damaged = device.image();
    if engine.flawless(&device).is_ok() {
        return Err(fail("fsck finds nothing".into()));
    }
    let whole = repaired(engine, &device).map_err(fail)?;
    let repair = Repair {
        was_clean: engine.is_clean(&subject.device(&damaged)) == Ok(true),
        whole,
        subject,
        sampling,
    };
    repair.interrupted(damaged, true).map_err(fail)
}

/// Repair; the image is clean then. Its tree.
fn repaired(engine: &dyn Engine, device: &Device) -> Result<Tree, Flaw> {
    engine.repair(device)?;
    let flawless = engine.flawless(device);
    flawless.map_err(|e| format!("after fsck: {e}"))?;
    engine.found(device)
}

/// What a repair that is not cut short keeps, and how others are explored.
struct Repair {
    whole: Tree,
    /// The damaged image says that it was unmounted.
    was_clean: bool,
    subject: Subject,
    sampling: Sampling,
}

impl Repair {
    /// Crash in the repair of this image, wherever that may be.
    fn interrupted(&self, image: Image, deeper: bool) -> Result<Explored, Flaw> {
        let (engine, trace) = (self.subject.engine, self.subject.trace(false));
        engine.repair(&self.subject.recorded(&image, &trace))?;
        let (events, _) = trace.take();
        let mut random = Random::new(self.sampling.seed ^ events.len() as u64);
        let settled = match self.was_clean {
            true => unclean(engine, &events),
            false => 0,
        };
        let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
            scratch.with(crash.overlay, |device| {
                // Nobody repairs what is marked clean.
                if crash.events > settled && engine.is_clean(device) == Ok(true) {
                    let flawless = engine.flawless(device);
                    flawless.map_err(|e| format!("marked clean: {e}"))?;
                }
                // What the repair has not come to yet would pass for free space.
                let is_begun = self.was_clean && engine.is_clean(device) == Ok(false);
                if is_begun && engine.mount_at(device, LATER).is_ok() {
                    return Err("half repaired, and it can be mounted".into());
                }
                keeps(&repaired(engine, device)?, &self.whole)
            })?;
            match deeper && random.below(DEEPER) == 0 {
                true => self
                    .interrupted(scratch.image(crash.overlay), false)
                    .map(drop),
                false => Ok(()),
            }
        };
        let explorer = Explorer {
            rules: self.subject.rules,
            sampling: self.sampling,
            only: None,
            from: 0,
            until: Until::Done,
            visit: &mut visit,
        };
        let explored = explorer.run(&events, &mut self.subject.scratch(image));
        explored.map_err(|o| {
            let (point, state) = (o.place.point, o.place.state);
            format!("repair interrupted at p{point}.s{state}: {}", o.what)
        })
    }
}

/// After how many events of a repair it is durable that the image is not clean any more.
fn unclean(engine: &dyn Engine, events: &[Event]) -> usize {
    let marked = events.iter().position(|event| engine.marks(event));
    let behind = marked.unwrap_or(events.len());
    let is_fence = |event: &Event| matches!(event, Event::Fence { .. });
    let fence = events[behind..].iter().position(is_fence);
    fence.map_or(events.len(), |fence| behind + fence)
}

/// Nothing is lost: each inode is there as the whole repair leaves it, under its names. Times are
/// not looked at: of `lost+found` they say when it was made.
fn keeps(now: &Tree, whole: &Tree) -> Result<(), Flaw> {
    let shape = |tree: &Tree, id: &Id| -> Option<Object> {
        let object = tree.objects.get(id)?;
        Some(Object {
            times: Default::default(),
            nlink: 0,
            names: BTreeMap::new(),
            ..object.clone()
        })
    };
    let lost = |tree: &Tree| tree.objects[&tree.root].names.get(LOST).copied();
    for (id, object) in &whole.objects {
        let is_lost = Some(*id) == lost(whole);
        let found = match is_lost {
            true => lost(now).ok_or("nothing is in lost+found")?,
            false => *id,
        };
        if !is_lost && shape(now, &found) != shape(whole, id) {
            let found = now.objects.get(&found);
            return Err(format!(
                "inode {} is {found:?}\n  instead of {object:?}",
                id.0
            ));
        }
        if now.contents.get(&found) != whole.contents.get(id) {
            return Err(format!("inode {} holds other bytes", id.0));
        }
        let names = &now.objects[&found].names;
        let missing = object.names.iter().find(|(name, child)| {
            let at = names.get(*name);
            at != Some(*child) && (name.as_slice() != LOST || at.is_none())
        });
        if let Some((name, child)) = missing {
            let name = name.escape_ascii();
            return Err(format!(
                "name {name} of inode {} in {} is lost",
                child.0, id.0
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::by_name;
    use pmem::Domain;
    use vfs::Kind;

    #[test]
    fn what_a_repair_loses_is_noticed() {
        let workload = by_name("damaged-0").expect("a workload of this name");
        let (_, tree) = unmounted(&workload, Domain::Line.into()).expect("it runs");
        keeps(&tree, &tree).expect("nothing is lost");
        let file = tree.objects.iter().find(|(_, o)| o.kind == Kind::File);
        let file = *file.expect("a file").0;
        let changes: [fn(&mut Tree, Id); 4] = [
            |tree, file| drop(tree.objects.remove(&file)),
            |tree, file| tree.objects.get_mut(&file).expect("there").perm ^= 1,
            |tree, file| drop(tree.contents.remove(&file)),
            |tree, _| tree.objects.values_mut().for_each(|o| o.names.clear()),
        ];
        for change in changes {
            let mut now = tree.clone();
            change(&mut now, file);
            assert!(keeps(&now, &tree).is_err());
        }
    }
}
