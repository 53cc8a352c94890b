//! What POSIX access control lists say, as far as a mode has to stand for one that cannot be kept.

/// The list that decides who may use a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";

/// `linux/posix_acl_xattr.h`: a version of 4 bytes, then entries of tag, rights (2 bytes each) and id (4 bytes).
const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;

/// The mode that gives no user more than mode and list together did. Beside a list the group bits of a mode are the
/// list's mask, not the rights of the group: taken for those they would open the file to a group that the list kept
/// out. Users and groups that the list names fall under group or others without it, which therefore get no more than
/// each of them had.
#[must_use]
pub fn mode_without(mode: u16, list: &[u8]) -> u16 {
    let Some(entries) = entries(list) else { return mode & !0o077 };
    let of = |wanted: u16| entries.iter().filter(move |(tag, _)| *tag == wanted);
    let mask = of(MASK).map(|(_, rights)| *rights).next().unwrap_or(7);
    let rights = |tag: u16| of(tag).fold(7, |all, (_, rights)| all & rights & mask);
    let (users, groups) = (rights(USER), rights(GROUP));
    let group = (mode >> 3) & rights(GROUP_OBJ) & users;
    let others = mode & users & groups & 7;
    (mode & !0o077) | ((group & 7) << 3) | others
}

fn entries(list: &[u8]) -> Option<Vec<(u16, u16)>> {
    let (version, entries) = list.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % ENTRY_BYTES != 0 {
        return None;
    }
    let number = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    let each = entries.chunks_exact(ENTRY_BYTES);
    Some(each.map(|entry| (number(entry), number(&entry[2..]))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, rights) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(rights.to_le_bytes());
            bytes.extend(u32::MAX.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn without_its_list_a_file_stays_closed_to_those_who_were_kept_out() {
        let owner = (0x01, 6);
        // u::rw-, user:bob:rw-, g::---, m::rw-, o::---
        let named = list(&[owner, (USER, 6), (GROUP_OBJ, 0), (MASK, 6), (0x20, 0)]);
        assert_eq!(mode_without(0o660, &named), 0o600);
        // One user is kept out of what all others read.
        let kept_out = list(&[owner, (USER, 0), (GROUP_OBJ, 4), (MASK, 4), (0x20, 4)]);
        assert_eq!(mode_without(0o644, &kept_out), 0o600);
        // One group is; members of the file's own group that are in both have the rights of both.
        let group_out = list(&[owner, (GROUP_OBJ, 4), (GROUP, 0), (MASK, 4), (0x20, 4)]);
        assert_eq!(mode_without(0o2644, &group_out), 0o2640);
        // The mask takes the group's rights away.
        let masked = list(&[owner, (USER, 6), (GROUP_OBJ, 7), (MASK, 4), (0x20, 4)]);
        assert_eq!(mode_without(0o644, &masked), 0o644);
        assert_eq!(mode_without(0o4755, b"no list"), 0o4700);
    }
}
