//! Cases that every engine must pass.
//!
//! `model::engine_cases!(engine)` in a test file makes one `#[test]` of each. After each case the
//! file system is settled, unmounted and mounted again, and must look as before.

#![allow(missing_docs, reason = "the name of a case is its statement")]

pub mod attributes;
pub mod data;
pub mod directories;
pub mod lifetime;
pub mod namespace;
pub mod ranges;
pub mod rename;
pub mod threads;
pub mod xattrs;

use std::sync::Arc;

use vfs::{
    Attr, Capabilities, Errno, FileSystem, Kind, ManualClock, NewKind, NewNode, Place, RenameMode,
    Result, SetAttr, Time, XattrMode,
};

use crate::snapshot::{self, Snapshot, View};
use crate::{Engine, Feature};

/// What a case works on: a fresh file system, its clock, and short names for frequent calls.
/// All short forms panic where the call fails.
pub struct Bed<'e, E: Engine> {
    engine: &'e E,
    clock: Arc<ManualClock>,
    fs: E::Fs,
}

type NodeOf<E> = <<E as Engine>::Fs as FileSystem>::Node;

/// Run one case on a fresh file system of `engine`.
pub fn run<E: Engine>(engine: &E, case: fn(&Bed<'_, E>)) {
    let clock = Arc::new(ManualClock::new(Time(1_000_000_000)));
    let bed = Bed {
        engine,
        fs: engine.make(clock.clone()),
        clock,
    };
    case(&bed);

    let Bed { fs, .. } = bed;
    engine.settle(&fs);
    let view = at_rest(engine);
    let before = Snapshot::of(&fs, &fs.root(), view).expect("the tree can be read");
    let fs = engine.remount(fs);
    let after = Snapshot::of(&fs, &fs.root(), view).expect("the tree can be read");
    if let Some(difference) = after.difference(&before) {
        panic!("another tree after unmounting and mounting:\n{difference}");
    }
}

/// What of one engine does not change while nothing is done to it.
fn at_rest<E: Engine>(engine: &E) -> View {
    View {
        times: true,
        atime: engine.lacks(Feature::Clock).is_none(),
    }
}

/// The veto that nobody casts.
fn allow(_: &vfs::Rights) -> Result<()> {
    Ok(())
}

/// The error of a call that must fail.
#[track_caller]
fn fails<T>(result: Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("succeeded, and should have failed"),
        Err(error) => error.errno(),
    }
}

/// An access control list of so many entries, as the value of an extended attribute.
fn acl(entries: u32) -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for user in 0..entries {
        // A user's: its tag, what it allows, its number.
        list.extend([2, 0, 4, 0]);
        list.extend(user.to_le_bytes());
    }
    list
}

/// A plain new inode of this kind, as root makes it.
fn new(kind: NewKind<'_>) -> NewNode<'_> {
    // Linux gives every symbolic link the same permissions.
    let perm = if kind.kind() == Kind::Symlink {
        0o777
    } else {
        0o644
    };
    NewNode {
        kind,
        perm,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

impl<E: Engine> Bed<'_, E> {
    fn root(&self) -> NodeOf<E> {
        self.fs.root()
    }

    /// Whether the engine has the feature; if not, says why the rest of the case is skipped.
    fn has(&self, feature: Feature) -> bool {
        let reason = self.engine.lacks(feature);
        if let Some(reason) = reason {
            println!("skipped {feature:?}: {reason}");
        }
        reason.is_none()
    }

    /// Whether the engine says that it can do this.
    fn can(&self, what: Capabilities) -> bool {
        self.fs.limits().capabilities.contains(what)
    }

    #[track_caller]
    fn make(&self, dir: &NodeOf<E>, name: &str, kind: NewKind<'_>) -> NodeOf<E> {
        match self.fs.create(dir, name.as_bytes(), &new(kind)) {
            Ok(node) => node,
            Err(error) => panic!("create {name:?}: {error}"),
        }
    }

    #[track_caller]
    fn file(&self, dir: &NodeOf<E>, name: &str) -> NodeOf<E> {
        self.make(dir, name, NewKind::File)
    }

    /// A file with these contents.
    #[track_caller]
    fn file_with(&self, dir: &NodeOf<E>, name: &str, data: &[u8]) -> NodeOf<E> {
        let file = self.file(dir, name);
        self.write(&file, 0, data);
        file
    }

    #[track_caller]
    fn mkdir(&self, dir: &NodeOf<E>, name: &str) -> NodeOf<E> {
        self.make(dir, name, NewKind::Dir)
    }

    #[track_caller]
    fn get(&self, dir: &NodeOf<E>, name: &str) -> NodeOf<E> {
        match self.fs.lookup(dir, name.as_bytes()) {
            Ok(node) => node,
            Err(error) => panic!("lookup {name:?}: {error}"),
        }
    }

    fn exists(&self, dir: &NodeOf<E>, name: &str) -> bool {
        match self.fs.lookup(dir, name.as_bytes()) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOENT);
                false
            }
        }
    }

    fn unlink(&self, dir: &NodeOf<E>, name: &str) -> Result<()> {
        self.fs.unlink(dir, name.as_bytes(), &allow)
    }

    fn rmdir(&self, dir: &NodeOf<E>, name: &str) -> Result<()> {
        self.fs.rmdir(dir, name.as_bytes(), &allow)
    }

    fn link(&self, node: &NodeOf<E>, dir: &NodeOf<E>, name: &str) -> Result<()> {
        self.fs.link(node, dir, name.as_bytes())
    }

    fn rename(
        &self,
        from: (&NodeOf<E>, &str),
        to: (&NodeOf<E>, &str),
        mode: RenameMode,
    ) -> Result<()> {
        self.fs.rename(
            Place::new(from.0, from.1.as_bytes()),
            Place::new(to.0, to.1.as_bytes()),
            mode,
            &allow,
        )
    }

    /// Write all of `data`.
    #[track_caller]
    fn write(&self, node: &NodeOf<E>, offset: u64, data: &[u8]) {
        assert_eq!(self.fs.write(node, offset, data), Ok(data.len()));
    }

    #[track_caller]
    fn read(&self, node: &NodeOf<E>, offset: u64, len: usize) -> Vec<u8> {
        snapshot::read_at(&self.fs, node, offset, len).expect("a regular file can be read")
    }

    /// All contents.
    fn contents(&self, node: &NodeOf<E>) -> Vec<u8> {
        self.read(node, 0, self.size(node) as usize)
    }

    #[track_caller]
    fn truncate(&self, node: &NodeOf<E>, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        assert_eq!(self.fs.setattr(node, &set).map(|attr| attr.size), Ok(size));
    }

    fn attr(&self, node: &NodeOf<E>) -> Attr {
        self.fs.attr(node)
    }

    fn size(&self, node: &NodeOf<E>) -> u64 {
        self.attr(node).size
    }

    fn nlink(&self, node: &NodeOf<E>) -> u32 {
        self.attr(node).nlink
    }

    fn kind(&self, node: &NodeOf<E>) -> Kind {
        self.attr(node).kind
    }

    fn same(&self, left: &NodeOf<E>, right: &NodeOf<E>) -> bool {
        self.fs.ino(left) == self.fs.ino(right)
    }

    fn setxattr(&self, node: &NodeOf<E>, name: &str, value: &[u8]) -> Result<()> {
        let also = SetAttr::default();
        self.fs
            .setxattr(node, name.as_bytes(), value, XattrMode::Any, &also)
    }

    /// The names in a directory, sorted.
    fn ls(&self, dir: &NodeOf<E>) -> Vec<String> {
        let entries = snapshot::list(&self.fs, dir).expect("the directory can be read");
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        entries.iter().map(|(name, _, _)| text(name)).collect()
    }

    /// Everything that can be seen.
    fn snapshot(&self) -> Snapshot {
        let view = at_rest(self.engine);
        Snapshot::of(&self.fs, &self.root(), view).expect("the tree can be read")
    }

    /// Nothing that can be seen changes while `action` runs.
    #[track_caller]
    fn unchanged(&self, action: impl FnOnce()) {
        self.engine.tick(&self.clock);
        let before = self.snapshot();
        action();
        if let Some(difference) = self.snapshot().difference(&before) {
            panic!("something changed:\n{difference}");
        }
    }

    /// `action` changes exactly these timestamps of these nodes: `a`, `m` and `c`.
    #[track_caller]
    fn touches(&self, nodes: &[(&NodeOf<E>, &str)], action: impl FnOnce()) {
        let times = |node: &NodeOf<E>| -> [(char, Time); 3] {
            let attr = self.attr(node);
            [('a', attr.atime), ('m', attr.mtime), ('c', attr.ctime)]
        };
        let before: Vec<_> = nodes.iter().map(|(node, _)| times(node)).collect();
        self.engine.tick(&self.clock);
        action();
        for (at, (node, expected)) in nodes.iter().enumerate() {
            let changed: String = (times(node).iter().zip(&before[at]))
                .filter(|(after, before)| after != before)
                .map(|(after, _)| after.0)
                .collect();
            assert_eq!(
                changed, *expected,
                "changed timestamps of node {at} in the list"
            );
        }
    }
}

/// Every case, by module, in the order of definition: `$then!` receives them and `$engine`.
#[doc(hidden)]
#[macro_export]
macro_rules! with_cases {
    ([$($then:tt)*], $engine:expr) => {
        $($then)*! { $engine;
            namespace {
                a_new_file_has_what_it_was_made_with
                every_kind_can_be_made_and_removed
                making_what_exists_fails
                a_directory_counts_its_subdirectories
                lookup_fails_below_what_is_no_directory
                a_missing_name_is_not_found
                nothing_can_be_made_in_a_removed_directory
                names_of_every_length_are_told_apart
                names_may_hold_any_byte
                names_that_are_too_long_are_refused
                symbolic_links_keep_their_target
                hard_links_share_the_inode
                linking_fails_where_it_must
                an_unlinked_file_cannot_be_linked_again
                unlink_fails_where_it_must
                rmdir_fails_where_it_must
                a_vetoed_removal_changes_nothing
                a_veto_is_asked_about_the_victim
                parents_are_known
                inodes_are_found_by_number
                deep_trees_work
                making_and_removing_touches_the_right_times
            }
            rename {
                a_file_moves
                a_directory_moves_with_all_below_it
                a_target_is_replaced_and_its_inode_lives_on_while_held
                names_of_one_inode_are_left_alone
                a_directory_never_goes_below_itself
                an_ancestor_is_never_replaced
                kinds_must_match
                a_directory_that_is_replaced_must_be_empty
                noreplace_refuses_a_target
                exchange_swaps_any_two
                exchange_needs_both
                exchanged_directories_know_their_new_parents
                whiteout_leaves_a_device
                a_missing_source_is_not_found
                a_removed_directory_takes_nothing
                a_vetoed_rename_changes_nothing
                a_veto_is_asked_about_both
                link_counts_of_parents_follow
                renaming_touches_the_right_times
                every_combination_is_as_the_model_has_it
                long_and_short_names_replace_each_other
            }
            data {
                what_is_written_is_read
                reading_stops_at_the_end
                writing_beyond_the_end_leaves_zeros
                overwriting_keeps_the_rest
                writes_of_all_sizes_around_block_boundaries_are_read_back
                appends_follow_each_other
                truncating_cuts_off
                what_was_cut_off_never_shows_again
                truncating_in_steps_within_a_block_and_across_reads_zeros
                extending_reads_zeros
                offsets_far_away_work
                too_large_is_refused
                contents_belong_to_regular_files_only
                an_empty_write_does_nothing
                contents_survive_many_blocks
                writing_touches_the_right_times
            }
            ranges {
                allocating_reads_zeros_and_extends
                allocating_can_keep_the_size
                allocated_space_is_counted_and_given_back
                allocating_keeps_what_is_there
                punching_reads_zeros_and_keeps_the_size
                punching_beyond_the_end_is_harmless
                zeroing_reads_zeros
                zeroing_can_extend
                bad_ranges_are_refused
                ranges_belong_to_regular_files_only
                seek_finds_data_and_holes
                seek_beyond_the_end_is_refused
                seek_never_skips_data
                what_was_reserved_beyond_the_end_reads_zeros_later
                copying_within_a_file
                copying_between_files
                copying_overlapping_ranges_is_refused
                copying_stops_at_the_end
                copying_holes_overwrites_what_was_there
                range_operations_touch_the_right_times
            }
            attributes {
                permissions_and_owner_are_set
                nothing_set_changes_nothing
                times_are_set_exactly
                attributes_are_set_all_or_none
                the_size_belongs_to_regular_files_only
                setting_touches_the_right_times
                access_times_are_set_quietly
                births_stay
                a_new_inode_is_born_with_extended_attributes
                statfs_is_sane
            }
            xattrs {
                attributes_are_set_replaced_and_removed
                create_and_replace_are_told_apart
                values_of_every_size_are_kept
                many_names_are_kept_apart
                limits_are_kept
                every_kind_has_attributes
                attributes_follow_the_inode
                attributes_are_set_together
                setting_touches_the_right_times
            }
            directories {
                each_entry_is_handed_out_once
                a_refused_entry_is_not_consumed
                cookies_resume_where_they_left
                entries_that_stay_are_met_once_while_others_come_and_go
                a_cookie_of_a_removed_entry_still_resumes
                replaced_and_exchanged_names_are_met_once
                five_thousand_names_grow_and_shrink
                colliding_prefixes_are_told_apart
                a_directory_emptied_can_be_removed
                emit_may_call_back
                readdir_belongs_to_directories_only
            }
            lifetime {
                an_unlinked_file_stays_usable_while_held
                a_removed_directory_stays_harmless_while_held
                clones_keep_an_inode_alive
                a_freed_inode_is_gone
                a_nameless_file_is_born_usable
                a_nameless_file_can_be_named_once_and_more
                nameless_files_are_regular
                a_replaced_file_is_freed_with_its_last_reference
                space_comes_back_after_removal
                space_of_unlinked_files_comes_back_with_the_last_reference
                syncing_works_on_every_kind
            }
            threads {
                separate_directories_do_not_disturb_each_other
                one_directory_takes_names_from_all
                only_one_creates_a_name
                only_one_removes_a_name
                readers_see_the_old_or_the_new
                renames_over_one_name_leave_one
                opposed_renames_never_make_a_cycle
                directories_swap_back_and_forth
                appends_do_not_overlap
                removing_and_making_in_a_directory_exclude_each_other
                entries_that_stay_are_met_while_others_change
                links_are_counted
            }
        }
    };
}

/// One `#[test]` for each case, on file systems of `$engine` (an expression that is an
/// [`Engine`](crate::Engine), or a closure that takes a clock).
#[macro_export]
macro_rules! engine_cases {
    ($engine:expr) => {
        $crate::with_cases! { [$crate::engine_tests], $engine }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! engine_tests {
    ($engine:expr; $($module:ident { $($case:ident)* })*) => {
        $(mod $module {
            #[allow(unused_imports)]
            use super::*;
            $(#[test]
            fn $case() {
                $crate::cases::run(&$engine, $crate::cases::$module::$case);
            })*
        })*
    };
}

#[cfg(test)]
mod tests {
    macro_rules! listed {
        ($unused:expr; $($module:ident { $($case:ident)* })*) => {
            [$((
                include_str!(concat!(stringify!($module), ".rs")),
                [$(stringify!($case)),*].as_slice(),
            )),*]
        };
    }

    #[test]
    fn every_case_is_in_the_list() {
        for (source, cases) in with_cases!([listed], ()) {
            let defined = source
                .lines()
                .filter_map(|line| line.strip_prefix("pub fn "));
            let defined: Vec<_> = defined.filter_map(|line| line.split('<').next()).collect();
            assert_eq!(defined, cases);
        }
    }
}
