//! Access control lists: their form, their meaning, and how they and the mode keep in step.

mod common;

use common::{OTHER, OWNER, Setup, fails, setup, user};
use model::Node;
use proptest::prelude::*;
use vfs::{
    ACL_ACCESS, ACL_DEFAULT, Access, Acl, Cred, Errno, NewKind, NewNodeRequest, SetAttrRequest,
    XattrMode,
};

fn access() -> impl Strategy<Value = Access> {
    (0u16..8).prop_map(Access::from_perm)
}

fn acl() -> impl Strategy<Value = Acl> {
    let named = || prop::collection::vec((0..u32::MAX, access()), 0..4);
    (
        access(),
        named(),
        access(),
        named(),
        prop::option::of(access()),
        access(),
    )
        .prop_map(|(owner, users, group, groups, mask, other)| {
            let needed = !users.is_empty() || !groups.is_empty();
            let mask = mask.or(needed.then_some(Access::R));
            Acl {
                owner,
                users,
                group,
                groups,
                mask,
                other,
            }
        })
}

proptest! {
    #[test]
    fn a_list_survives_being_an_attribute(acl in acl()) {
        prop_assert_eq!(Acl::parse(&acl.to_xattr()).unwrap(), Some(acl));
    }

    #[test]
    fn any_bytes_are_a_list_that_is_written_back_as_it_was_or_an_error(
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        version: bool,
    ) {
        if version && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&2u32.to_le_bytes());
        }
        if let Ok(Some(acl)) = Acl::parse(&bytes) {
            prop_assert_eq!(Acl::parse(&acl.to_xattr()).unwrap(), Some(acl));
        }
    }

    #[test]
    fn one_changed_byte_never_makes_a_list_without_a_needed_mask(
        acl in acl(), at: prop::sample::Index, byte: u8,
    ) {
        let mut bytes = acl.to_xattr();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(Some(acl)) = Acl::parse(&bytes) {
            prop_assert!(acl.mask.is_some() || acl.is_minimal());
        }
    }

    #[test]
    fn chmod_shows_in_the_permission_bits(mut acl in acl(), perm in 0u16..=0o777) {
        acl.chmod(perm);
        prop_assert_eq!(acl.perm(), perm);
    }

    #[test]
    fn an_inherited_list_gives_no_more_than_asked(mut acl in acl(), perm in 0u16..=0o7777) {
        let default = acl.perm();
        let got = acl.inherit(perm);
        prop_assert_eq!(got, perm & (default | !0o777));
        prop_assert_eq!(acl.perm(), got & 0o777);
    }

    #[test]
    fn a_minimal_list_means_what_the_bits_mean(perm in 0u16..=0o777) {
        let acl = Acl::from_perm(perm);
        prop_assert!(acl.is_minimal());
        prop_assert_eq!(acl.perm(), perm);
    }
}

/// The form that `setfacl -m u:1000:rw,g:100:r` gives a file of mode 640, byte for byte.
#[test]
fn the_attribute_is_what_the_kernel_and_its_tools_write() {
    let bytes = [
        &[2, 0, 0, 0][..],
        &[1, 0, 6, 0, 255, 255, 255, 255],
        &[2, 0, 6, 0, 0xe8, 3, 0, 0],
        &[4, 0, 4, 0, 255, 255, 255, 255],
        &[8, 0, 4, 0, 100, 0, 0, 0],
        &[16, 0, 6, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    let acl = Acl::parse(&bytes).unwrap().unwrap();
    assert_eq!(acl.users, [(1000, Access::R | Access::W)]);
    assert_eq!(acl.groups, [(100, Access::R)]);
    assert_eq!(acl.perm(), 0o660);
    assert_eq!(acl.to_xattr(), bytes);
}

#[test]
fn malformed_lists_are_refused() {
    let entry = |tag: u8, perm: u8, id: u32| {
        let mut bytes = vec![tag, 0, perm, 0];
        bytes.extend(id.to_le_bytes());
        bytes
    };
    let list = |entries: &[Vec<u8>]| [vec![2, 0, 0, 0], entries.concat()].concat();
    let (u, g, o) = (entry(1, 7, !0), entry(4, 7, !0), entry(32, 7, !0));
    let (named, mask) = (entry(2, 7, 5), entry(16, 7, !0));
    assert!(
        Acl::parse(&list(&[u.clone(), g.clone(), o.clone()]))
            .unwrap()
            .is_some()
    );
    assert_eq!(Acl::parse(&list(&[])).unwrap(), None);
    assert_eq!(Acl::parse(&[]).unwrap(), None);
    for bad in [
        list(&[u.clone(), g.clone()]),
        list(&[g.clone(), u.clone(), o.clone()]),
        list(&[u.clone(), u.clone(), g.clone(), o.clone()]),
        list(&[u.clone(), named.clone(), g.clone(), o.clone()]),
        list(&[u.clone(), named, g.clone(), o.clone(), mask]),
        list(&[
            u.clone(),
            entry(2, 7, !0),
            g.clone(),
            entry(16, 7, !0),
            o.clone(),
        ]),
        list(&[u.clone(), g.clone(), entry(32, 8, !0)]),
        list(&[u.clone(), g.clone(), o.clone(), entry(64, 7, !0)]),
        list(&[u, g, o])[..27].to_vec(),
        vec![2, 0],
    ] {
        fails(Acl::parse(&bad), Errno::INVAL);
    }
    fails(Acl::parse(&[1, 0, 0, 0]), Errno::OPNOTSUPP);
}

const NAMED_USER: u32 = 3000;
const NAMED_GROUP: u32 = 600;
const GROUP: u32 = 500;

/// acl(5), section "access check algorithm", word for word, for a list with one named user and one
/// named group.
fn by_the_book(acl: &Acl, cred: &Cred, want: Access) -> bool {
    let mask = acl.mask.unwrap();
    if cred.uid == OWNER {
        return acl.owner.contains(want);
    }
    if cred.uid == NAMED_USER {
        return acl.users[0].1.contains(want) && mask.contains(want);
    }
    let (own, named) = (cred.in_group(GROUP), cred.in_group(NAMED_GROUP));
    if own || named {
        let granted = own && acl.group.contains(want) || named && acl.groups[0].1.contains(want);
        return granted && mask.contains(want);
    }
    acl.other.contains(want)
}

#[test]
fn the_right_entry_decides_for_everyone() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, GROUP), 0o777);
    let callers = [
        Cred::new(OWNER, GROUP, &[NAMED_GROUP]),
        Cred::new(NAMED_USER, GROUP, &[NAMED_GROUP]),
        Cred::new(OTHER, GROUP, &[]),
        Cred::new(OTHER, 1, &[NAMED_GROUP]),
        Cred::new(OTHER, NAMED_GROUP, &[GROUP]),
        Cred::new(OTHER, 1, &[2]),
    ];
    let values = [0, 1, 4, 6].map(Access::from_perm);
    // A digit of base four for each of the six entries.
    for code in 0..4usize.pow(6) {
        let digit = |place: u32| values[code / 4usize.pow(place) % 4];
        let acl = Acl {
            owner: digit(0),
            users: vec![(NAMED_USER, digit(1))],
            group: digit(2),
            groups: vec![(NAMED_GROUP, digit(3))],
            mask: Some(digit(4)),
            other: digit(5),
        };
        put(&s, &file, ACL_ACCESS, &acl);
        for cred in &callers {
            for want in (0..8).map(Access::from_perm) {
                let expected = by_the_book(&acl, cred, want);
                assert_eq!(
                    s.may(cred, &file, want),
                    expected,
                    "{acl:?} {cred:?} {want:?}"
                );
            }
        }
    }
}

fn put(s: &Setup, node: &Node, name: &[u8], acl: &Acl) {
    s.vfs
        .setxattr(&s.su, node, name, &acl.to_xattr(), XattrMode::Any)
        .unwrap();
}

fn get(s: &Setup, node: &Node, name: &[u8]) -> Option<Acl> {
    match s.vfs.getxattr(&s.su, node, name) {
        Ok(value) => Acl::parse(&value).unwrap(),
        Err(error) => {
            assert_eq!(error.errno(), Errno::NODATA);
            None
        }
    }
}

/// Mode 640 with a named user who may read and write.
fn sample() -> Acl {
    Acl {
        users: vec![(NAMED_USER, Access::from_perm(6))],
        mask: Some(Access::from_perm(6)),
        ..Acl::from_perm(0o640)
    }
}

#[test]
fn setting_a_list_sets_the_mode_and_chmod_sets_the_mask() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, OWNER), 0o1604);
    put(&s, &file, ACL_ACCESS, &sample());
    assert_eq!(s.perm(&file), 0o1660);
    s.chmod(&file, 0o705);
    let acl = get(&s, &file, ACL_ACCESS).unwrap();
    assert_eq!(
        acl,
        Acl {
            owner: Access::all(),
            mask: Some(Access::empty()),
            other: Access::from_perm(5),
            ..sample()
        }
    );
    assert!(!s.may(&user(NAMED_USER), &file, Access::R));
    assert_eq!(s.perm(&file), 0o705);
}

#[test]
fn a_list_that_says_what_the_mode_says_is_not_kept() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, OWNER), 0o644);
    for had_one in [false, true] {
        if had_one {
            put(&s, &file, ACL_ACCESS, &sample());
        }
        put(&s, &file, ACL_ACCESS, &Acl::from_perm(0o751));
        assert_eq!(get(&s, &file, ACL_ACCESS), None);
        assert_eq!(s.perm(&file), 0o751);
        assert!(!s.vfs.getattr(&file).has_xattrs);
    }
}

#[test]
fn removing_a_list_that_is_not_there_succeeds() {
    let s = setup();
    for name in [ACL_ACCESS, ACL_DEFAULT] {
        s.vfs.removexattr(&s.su, &s.root, name).unwrap();
        put(&s, &s.root, name, &sample());
        s.vfs
            .setxattr(&s.su, &s.root, name, &[2, 0, 0, 0], XattrMode::Any)
            .unwrap();
        assert_eq!(get(&s, &s.root, name), None);
    }
}

#[test]
fn only_the_owner_sets_lists_and_everyone_sees_them() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, OWNER), 0o600);
    let value = sample().to_xattr();
    let set = |cred: &Cred| {
        s.vfs
            .setxattr(cred, &file, ACL_ACCESS, &value, XattrMode::Any)
    };
    fails(set(&user(OTHER)), Errno::PERM);
    set(&user(OWNER)).unwrap();
    assert_eq!(
        s.vfs.getxattr(&user(OTHER), &file, ACL_ACCESS).unwrap(),
        value
    );
    fails(
        s.vfs.removexattr(&user(OTHER), &file, ACL_ACCESS),
        Errno::PERM,
    );
    fails(
        s.vfs
            .setxattr(&s.su, &file, ACL_ACCESS, b"nonsense", XattrMode::Any),
        Errno::OPNOTSUPP,
    );
}

#[test]
fn set_gid_goes_when_a_list_is_set_by_one_outside_the_group() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, GROUP), 0o2750);
    let set = |cred: &Cred| {
        s.vfs
            .setxattr(
                cred,
                &file,
                ACL_ACCESS,
                &sample().to_xattr(),
                XattrMode::Any,
            )
            .unwrap();
        s.perm(&file)
    };
    assert_eq!(set(&Cred::new(OWNER, GROUP, &[])), 0o2660);
    assert_eq!(set(&user(OWNER)), 0o660);
}

#[test]
fn links_have_no_lists_and_only_directories_hand_them_down() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, OWNER), 0o644);
    let link = s.make(&s.root, "l", NewKind::Symlink(b"f"), (OWNER, OWNER), 0);
    let value = sample().to_xattr();
    fails(
        s.vfs
            .setxattr(&s.su, &link, ACL_ACCESS, &value, XattrMode::Any),
        Errno::OPNOTSUPP,
    );
    fails(s.vfs.getxattr(&s.su, &link, ACL_ACCESS), Errno::OPNOTSUPP);
    fails(
        s.vfs
            .setxattr(&s.su, &file, ACL_DEFAULT, &value, XattrMode::Any),
        Errno::ACCESS,
    );
    s.vfs.removexattr(&s.su, &file, ACL_DEFAULT).unwrap();
}

#[test]
fn what_is_made_inherits_the_default_list_and_the_umask_has_no_say() {
    let s = setup();
    let dir = s.dir(&s.root, "d", (OWNER, OWNER), 0o2755);
    let default = Acl {
        group: Access::all(),
        mask: Some(Access::all()),
        ..sample()
    };
    put(&s, &dir, ACL_DEFAULT, &default);
    let make = |name: &[u8], kind, perm| {
        s.vfs
            .create(
                &user(OWNER),
                &dir,
                name,
                &NewNodeRequest::new(kind, perm, 0o777),
            )
            .unwrap()
    };

    let file = make(b"f", NewKind::File, 0o664);
    assert_eq!(s.perm(&file), 0o660);
    let expected = Acl {
        mask: Some(Access::from_perm(6)),
        ..default.clone()
    };
    assert_eq!(get(&s, &file, ACL_ACCESS), Some(expected));
    assert_eq!(get(&s, &file, ACL_DEFAULT), None);
    assert!(s.may(&user(NAMED_USER), &file, Access::R | Access::W));

    let sub = make(b"d", NewKind::Dir, 0o777);
    assert_eq!(s.perm(&sub), 0o2670);
    assert_eq!(get(&s, &sub, ACL_DEFAULT), Some(default.clone()));
    assert_eq!(get(&s, &sub, ACL_ACCESS), Some(default.clone()));

    let link = make(b"l", NewKind::Symlink(b"f"), 0);
    assert!(!s.vfs.getattr(&link).has_xattrs);

    put(&s, &dir, ACL_DEFAULT, &Acl::from_perm(0o751));
    let plain = make(b"p", NewKind::File, 0o666);
    assert_eq!((s.perm(&plain), get(&s, &plain, ACL_ACCESS)), (0o640, None));
    let tmp = s.vfs.tmpfile(&user(OWNER), &dir, 0o666, 0o777).unwrap();
    assert_eq!(s.perm(&tmp), 0o640);
}

#[test]
fn one_request_may_change_mode_size_and_owner_of_a_file_with_a_list() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, OWNER), 0o644);
    put(&s, &file, ACL_ACCESS, &sample());
    let request = SetAttrRequest {
        perm: Some(0o600),
        uid: Some(OTHER),
        size: Some(10),
        ..Default::default()
    };
    let attr = s.vfs.setattr(&s.su, &file, &request).unwrap();
    assert_eq!((attr.perm, attr.uid, attr.size), (0o600, OTHER, 10));
    assert_eq!(get(&s, &file, ACL_ACCESS).unwrap().perm(), 0o600);
}

#[test]
fn changing_hands_keeps_the_list_and_its_agreement_with_the_mode() {
    let s = setup();
    let file = s.file(&s.root, "f", (OWNER, OWNER), 0o644);
    put(&s, &file, ACL_ACCESS, &sample());
    s.chmod(&file, 0o6775);
    s.own(&file, (OTHER, OTHER));
    assert_eq!(s.perm(&file), 0o775);
    assert_eq!(get(&s, &file, ACL_ACCESS).unwrap().perm(), 0o775);
}
