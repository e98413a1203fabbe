//! The handshake against ends without a secret, with another secret, that replay what they
//! overheard, change it on the way, or never finish; and the rules for the secret itself.

mod middle;

use super::frames::{Answer, Prologue};
use super::*;
use crate::wire::Peer;
use middle::{Tamper, converse, recorded, verify};
use nkv_store::OsRandom;
use proptest::prelude::*;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

pub(super) const JOB: &str = "a job";
/// All bytes that a client sends.
const CLIENT_BYTES: usize = OPENING_BYTES + FINISH_BYTES;

fn secret(text: &str) -> AuthMeans {
    AuthMeans::Secret(Secret::new(text.as_bytes(), "test").unwrap())
}

fn cookie(byte: u8) -> AuthMeans {
    AuthMeans::Cookie(Secret::new(&[byte; 32], "test").unwrap())
}

fn nothing() -> AuthMeans {
    AuthMeans::Nothing("none was looked for".to_string())
}

fn right() -> AuthMeans {
    secret("the right secret")
}

#[test]
fn i20_both_ends_that_share_the_secret_let_each_other_in() {
    for means in [right(), cookie(1), AuthMeans::Kernel, secret(&"long".repeat(50))] {
        let (client, server) = converse(means.clone(), means, &Tamper::NONE);
        client.unwrap();
        server.unwrap();
    }
}

#[test]
fn i20_a_wrong_secret_and_none_are_refused_and_both_ends_say_why() {
    for (client, server, client_error, server_error) in [
        (secret("the wrong secret"), right(), "differs from the job's", "a wrong proof"),
        (cookie(1), cookie(2), "cookie found here differs", "a wrong proof"),
        (nothing(), right(), "set NKV_SECRET", "it has no secret"),
        (cookie(1), right(), "set NKV_SECRET", "it has no secret"),
        (nothing(), cookie(1), "none was looked for", "neither a secret nor"),
        (right(), cookie(1), "started without one", "started without one"),
        (right(), AuthMeans::Kernel, "started without one", "started without one"),
        (AuthMeans::Kernel, right(), "set NKV_SECRET", "it has no secret"),
    ] {
        let (client, server) = converse(client, server, &Tamper::NONE);
        let (client, server) = (client.unwrap_err(), server.unwrap_err());
        assert!(client.is_final() && client.to_string().contains(client_error), "{client}");
        assert!(server.to_string().contains(server_error), "{server}");
    }
}

#[test]
fn i20_a_prefix_of_the_secret_is_another_secret() {
    let (client, _) = converse(secret("the right secret and"), right(), &Tamper::NONE);
    assert!(matches!(client, Err(AuthError::SecretDiffers)));
}

#[test]
fn i20_a_recorded_handshake_is_refused_byte_for_byte() {
    let record = recorded(right());
    assert_eq!(record.client.len(), CLIENT_BYTES);
    // The client's part again, to the same node.
    let (mut peer, node) = UnixStream::pair().unwrap();
    peer.write_all(&record.client).unwrap();
    let why = verify(node, right(), Channel::Control).unwrap_err();
    assert!(why.to_string().contains("replayed handshake"), "{why}");
    // The node's part again, to a client.
    let (client, mut peer) = UnixStream::pair().unwrap();
    peer.write_all(&record.node).unwrap();
    let why = middle::prove(client, right()).unwrap_err();
    assert!(matches!(why, AuthError::Impostor), "{why}");
}

#[test]
fn i20_a_client_takes_no_node_that_has_not_proven_itself() {
    let recorded = Answer::read_from_bytes(&recorded(right()).node).unwrap();
    let refusal = |needs: u32, noise: [u8; 48]| {
        Answer { needs: needs.into(), noise, ..recorded }.as_bytes().to_vec()
    };
    let (nobody, nobodys) = ([0; 48], recorded.noise);
    for (client, answer) in [
        // Another client's, none at all, and its own sent back.
        (right(), refusal(2, nobodys)),
        (right(), refusal(2, nobody)),
        (cookie(1), refusal(1, nobody)),
        // No node requires less of it than it can prove, or admits it without proof.
        (right(), refusal(0, nobody)),
        (right(), refusal(3, nobody)),
        (nothing(), refusal(0, nobody)),
        (nothing(), refusal(3, nobody)),
    ] {
        let (client_end, mut peer) = UnixStream::pair().unwrap();
        peer.write_all(&answer).unwrap();
        let why = middle::prove(client_end, client).unwrap_err();
        assert!(matches!(why, AuthError::Impostor | AuthError::Foreign(_)), "{why}");
        // The unauthenticated peer receives nothing but the opening.
        let mut heard = Vec::new();
        let _ = std::io::Read::read_to_end(&mut peer, &mut heard);
        assert_eq!(heard.len(), OPENING_BYTES);
    }
    let (client_end, mut peer) = UnixStream::pair().unwrap();
    let waits =
        nkv_store::threads::spawn_named("client", || middle::prove(client_end, right())).unwrap();
    let heard = middle::take(&mut peer, OPENING_BYTES);
    let mut own = [0; 48];
    own.copy_from_slice(&heard[OPENING_BYTES - 48..]);
    peer.write_all(&refusal(2, own)).unwrap();
    assert!(matches!(waits.join().unwrap(), Err(AuthError::Impostor)));
}

#[test]
fn i20_a_proof_for_one_channel_or_job_is_none_for_another() {
    let (client, node) = UnixStream::pair().unwrap();
    let waits = middle::proving(client, right());
    let why = verify(node, right(), Channel::Data).unwrap_err();
    assert!(matches!(why, AuthError::Channel(_)), "{why}");
    let refusal = waits.join().unwrap().unwrap_err().to_string();
    assert_eq!(refusal, "this is a data port, not a control port");
    // The channel changed on the way.
    let (client, node) = converse(right(), right(), &Tamper::flip(0, 12 * 8));
    assert!(client.is_err() && node.is_err());
    let (mut client, node) = UnixStream::pair().unwrap();
    let waits = nkv_store::threads::spawn_named("node", move || {
        verify(node, right(), Channel::Control).map(drop)
    });
    let why = prove_blocking(&mut client, right(), Channel::Control, "another job", &OsRandom)
        .unwrap_err();
    assert_eq!(
        why.to_string(),
        "this is job 'a job', not 'another job'; set NKV_JOB alike on every rank, or use another \
         NKV_PORT"
    );
    assert!(waits.unwrap().join().unwrap().is_err());
}

#[test]
fn i20_half_a_handshake_lets_nobody_in() {
    let record = recorded(right());
    for cut in (0..CLIENT_BYTES).step_by(7).chain([OPENING_BYTES, CLIENT_BYTES - 1]) {
        let (mut peer, node) = UnixStream::pair().unwrap();
        peer.write_all(&record.client[..cut]).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let why = verify(node, right(), Channel::Control).unwrap_err();
        let after = if cut < OPENING_BYTES { cut } else { cut - OPENING_BYTES };
        assert!(matches!(why, AuthError::Closed(n) if n == after), "{cut}: {why}");
    }
}

#[test]
fn i20_an_older_or_foreign_program_is_told_so_at_its_first_bytes() {
    // The first bytes of a control frame, a data hello and a browser.
    for bytes in [&[40, 0, 0, 0, 1, 0, 0, 0][..], b"nkvtcp-h", b"GET / HTTP/1.1\r\n"] {
        let (mut peer, node) = UnixStream::pair().unwrap();
        peer.write_all(bytes).unwrap();
        let why = verify(node, right(), Channel::Control).unwrap_err();
        assert!(matches!(why, AuthError::Foreign(_)) && !why.is_final(), "{why}");
        let answer = middle::take(&mut peer, ANSWER_BYTES);
        // To an older control client this is a frame of another version.
        let e = crate::wire::decode_frame::<u32>(&answer).unwrap_err().to_string();
        assert!(e.contains("run the same release"), "{e}");
    }
    let (client, mut http) = UnixStream::pair().unwrap();
    http.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    let why = middle::prove(client, right()).unwrap_err().to_string();
    assert!(why.contains("HTTP/1.1"), "{why}");
    // Version and magic are enough: an opening of an older version may be shorter than this one's.
    for theirs in [1u32, 3] {
        let (mut peer, node) = UnixStream::pair().unwrap();
        peer.write_all(b"nkv-auth").unwrap();
        peer.write_all(&theirs.to_le_bytes()).unwrap();
        let why = verify(node, right(), Channel::Control).unwrap_err();
        assert!(matches!(why, AuthError::Version { theirs: t } if t == theirs), "{why}");
        // The length that a client of version 1 waits for, with this end's version in it.
        assert_eq!(&middle::take(&mut peer, 312)[..12], b"nkv-chal\x02\0\0\0");
        let (client, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"nkv-chal").unwrap();
        other.write_all(&theirs.to_le_bytes()).unwrap();
        let why = middle::prove(client, right()).unwrap_err();
        assert!(matches!(why, AuthError::Version { theirs: t } if t == theirs), "{why}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn i20_a_bit_flipped_anywhere_ends_the_handshake(
        (frame, bit) in (0usize..3).prop_flat_map(|f| (Just(f), 0..middle::FRAMES[f] * 8)),
        by_cookie: bool,
    ) {
        let means = if by_cookie { cookie(3) } else { right() };
        let (client, node) = converse(means.clone(), means, &Tamper::flip(frame, bit));
        prop_assert!(node.is_err(), "the node continues");
        // The last frame goes from the client to the node: the client has seen a whole handshake.
        prop_assert_eq!(client.is_err(), frame < 2, "{:?}", client);
    }

    #[test]
    fn i20_bytes_of_an_unauthenticated_peer_never_admit_it_and_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..700),
        keep in 0usize..16,
    ) {
        // With a valid beginning in some cases, so that not all of them end at the magic.
        let mut sent = recorded(right()).client;
        sent.truncate(keep * 20);
        sent.extend(bytes);
        let (mut peer, node) = UnixStream::pair().unwrap();
        peer.write_all(&sent).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        prop_assert!(verify(node, right(), Channel::Control).is_err());
    }
}

#[test]
fn i20_the_handshake_is_noise_nnpsk0_over_the_clear_part_of_the_opening() {
    use hmac::{Hmac, Mac};
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(b"the right secret").unwrap();
    mac.update(b"nkv-auth psk v2\0a job");
    let psk: [u8; 32] = mac.finalize().into_bytes().into();
    let (opening, finish) = {
        let record = recorded(right());
        assert_eq!(&record.client[..20], b"nkv-auth\x02\0\0\0\x01\0\0\0\x02\0\0\0");
        // New for every handshake.
        let again = recorded(right());
        assert_ne!(record.client[OPENING_BYTES - 48..], again.client[OPENING_BYTES - 48..]);
        assert_ne!(record.node[ANSWER_BYTES - 48..], again.node[ANSWER_BYTES - 48..]);
        (record.client[..OPENING_BYTES].to_vec(), record.client[OPENING_BYTES..].to_vec())
    };
    assert_eq!(finish.len(), FINISH_BYTES);
    let (clear, noise) = opening.split_at(OPENING_BYTES - 48);
    assert!(Prologue::read_from_bytes(clear).unwrap().job.is(JOB));
    // An end made only of the crate can read its message 1.
    let params: snow::params::NoiseParams = "Noise_NNpsk0_25519_ChaChaPoly_SHA256".parse().unwrap();
    let reads = |prologue: &[u8], psk: &[u8; 32]| {
        let random = Box::new(super::noise::Primitives { seed: [7; 32] });
        let end = snow::Builder::with_resolver(params.clone(), random);
        let end = end.psk(0, psk).unwrap().prologue(prologue).unwrap().build_responder();
        end.unwrap().read_message(noise, &mut [0; 48])
    };
    assert_eq!(reads(clear, &psk), Ok(0));
    assert!(reads(&clear[1..], &psk).is_err() && reads(clear, &[0; 32]).is_err());
}

#[test]
fn i20_every_session_has_keys_of_its_own_and_every_message_a_number() {
    let (client, node) = converse(right(), right(), &Tamper::NONE);
    let (mut client, mut node) = (client.unwrap().tags().unwrap(), node.unwrap().tags().unwrap());
    let first = client.out.tag(&[b"a head"]);
    assert!(node.incoming.is_next(&[b"a", b" head"], &first));
    assert!(!node.incoming.is_next(&[b"a head"], &first), "said twice");
    assert!(!node.out.is_next(&[b"a head"], &first), "sent back");
    let second = node.out.tag(&[b"a head"]);
    assert!(!client.incoming.is_next(&[b"a tail"], &second));
    let (other, _) = converse(right(), right(), &Tamper::NONE);
    assert_ne!(other.unwrap().tags().unwrap().out.tag(&[b"a head"]), first);
    // On a connection identified by the kernel there is no key.
    let (plain, _) = converse(AuthMeans::Kernel, AuthMeans::Kernel, &Tamper::NONE);
    assert!(plain.unwrap().tags().is_none());
}

fn guarded() -> Guard {
    let right = Secret::new(b"the right secret", "test").unwrap();
    Guard::new(Credentials::of_client(JOB, Some(right)))
}

fn a_peer() -> Peer {
    Peer { unix: None, text: "tcp 192.0.2.1:9".to_string() }
}

fn block_on<F: Future>(f: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f)
}

#[test]
fn i20_an_unauthenticated_peer_that_sends_single_bytes_is_cut_off_in_time() {
    block_on(async {
        let guard = guarded();
        let (mut peer, mut node) = tokio::io::duplex(1024);
        let record = recorded(right());
        let drips = async {
            use tokio::io::AsyncWriteExt;
            for byte in record.client {
                peer.write_all(&[byte]).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let limit = Duration::from_millis(200);
        let peer = a_peer();
        let admitted = guard.admit(&mut node, &peer, limit, &|| ());
        tokio::select! {
            outcome = admitted => assert!(matches!(outcome, Err(AuthError::Late(200)))),
            () = drips => panic!("all 7 s of it were listened to"),
        }
        assert_eq!(guard.refused(), 1);
    });
}

#[test]
fn i20_the_guard_counts_who_was_turned_away_and_nobody_else() {
    block_on(async {
        let guard = guarded();
        let limit = nkv_pace::HANGS;
        for (means, let_in) in
            [(right(), true), (secret("the wrong secret"), false), (nothing(), false)]
        {
            let before = guard.refused();
            let (mut client, mut node) = tokio::io::duplex(1024);
            let peer = a_peer();
            let (client, node) = tokio::join!(
                prove(&mut client, means, Channel::Control, JOB, &OsRandom),
                guard.admit(&mut node, &peer, limit, &|| ())
            );
            assert_eq!((client.is_ok(), node.is_ok()), (let_in, let_in));
            assert_eq!(guard.refused() - before, u64::from(!let_in));
        }
        // A client that only tested whether something listens.
        let (client, mut node) = tokio::io::duplex(1024);
        drop(client);
        assert!(guard.admit(&mut node, &a_peer(), limit, &|| ()).await.is_err());
        assert_eq!(guard.refused(), 2);
    });
}

#[test]
fn i20_without_a_secret_a_unix_socket_needs_none_and_tcp_needs_the_cookie() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let held = CookieFile::hold_in(dir.path(), JOB).unwrap();
    let shared = held.secret().clone();
    let node = Credentials::of_cookie(JOB, held);
    let (unix, tcp) = ("unix:///s".parse().unwrap(), "127.0.0.1:1".parse().unwrap());
    assert_eq!(node.means(&unix).unwrap(), AuthMeans::Kernel);
    assert_eq!(node.means(&tcp).unwrap(), AuthMeans::Cookie(shared));
    // With a secret, every address uses it.
    let key = Secret::new(b"the right secret", "test").unwrap();
    let with = Credentials::of_client(JOB, Some(key.clone()));
    assert_eq!(with.means(&unix).unwrap(), AuthMeans::Secret(key.clone()));
    assert_eq!(with.means(&tcp).unwrap(), AuthMeans::Secret(key));
    // A guard without either admits nobody.
    block_on(async {
        let guard = Guard::new(Credentials::of_client("no such job here", None));
        let (_client, mut node) = tokio::io::duplex(1024);
        assert!(guard.admit(&mut node, &a_peer(), nkv_pace::HANGS, &|| ()).await.is_err());
    });
}

#[test]
fn i20_a_secret_is_long_enough_and_never_shown() {
    for short in ["", "fifteen bytes ."] {
        let text = Secret::new(short.as_bytes(), "NKV_SECRET").unwrap_err().to_string();
        let expected = format!("NKV_SECRET holds a secret of {} bytes; at least 16", short.len());
        assert!(text.contains(&expected), "{text}");
    }
    assert!(Secret::new(&[1; 4097], "x").is_err() && Secret::new(&[1; 4096], "x").is_ok());
    let one = Secret::new(b"sesame sesame open", "x").unwrap();
    let shown = format!(
        "{one:?} {:?} {:?}",
        AuthMeans::Secret(one.clone()),
        Guard::new(Credentials::of_client("j", Some(one.clone())))
    );
    assert!(!shown.contains("sesame") && !shown.contains("115, 101"), "{shown}");
}

#[test]
fn i20_a_file_that_others_can_read_is_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    std::fs::write(&path, "the right secret\r\n\n").unwrap();
    let set =
        |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
        set(mode);
        let text = Secret::read(&path).unwrap_err().to_string();
        assert!(text.contains(&format!("mode {mode:o}")) && text.contains("chmod 600"), "{text}");
    }
    for mode in [0o600, 0o400] {
        set(mode);
        assert_eq!(AuthMeans::Secret(Secret::read(&path).unwrap()), right());
    }
    // A link to it is one way of rotating secrets.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(Secret::read(&link).is_ok());
    assert!(Secret::read(dir.path()).unwrap_err().to_string().contains("is not a file"));
    assert!(Secret::read(&dir.path().join("none")).unwrap_err().to_string().contains("none: "));
    set(0o600);
    std::fs::write(&path, "\n\n").unwrap();
    assert!(Secret::read(&path).unwrap_err().to_string().contains("of 0 bytes"));
}

#[test]
fn i20_of_two_sources_the_flag_wins_and_two_variables_are_a_contradiction() {
    use std::ffi::OsStr;
    let text = Some(OsStr::new("the right secret"));
    let file = Some(OsStr::new("/nowhere"));
    assert_eq!(Secret::choose(None, None, None).unwrap(), None);
    assert_eq!(Secret::choose(None, text, None).unwrap().map(AuthMeans::Secret), Some(right()));
    for (flag, text, file, expected) in [
        (None, text, file, "both set"),
        (None, None, file, "/nowhere"),
        (None, Some(OsStr::new("")), None, "0 bytes"),
        (None, None, Some(OsStr::new("")), "set to nothing"),
        (Some(std::path::Path::new("/flag")), text, file, "/flag"),
    ] {
        let e = Secret::choose(flag, text, file).unwrap_err().to_string();
        assert!(e.contains(expected), "{e}");
    }
}

#[test]
fn i16_what_hashes_keys_follows_from_the_secret_and_the_job_at_every_member() {
    let right = Secret::new(b"the right secret", "test").unwrap();
    let hasher = right.key_hasher(JOB);
    // HMAC-SHA256 of label and job, as another program computes it: the first 16 bytes.
    assert_eq!(hasher.key(), 0xdd99_0256_8088_1478_8d9f_2e3a_ff7c_b72d_u128.to_be_bytes());
    assert_ne!(hasher, right.key_hasher("another job"));
    assert_ne!(hasher, Secret::new(b"the wrong secret", "test").unwrap().key_hasher(JOB));
    let node = Credentials::of_node(JOB, Some(right.clone())).unwrap();
    assert_eq!(node.key_hasher(), Some(hasher));

    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let held = CookieFile::hold_in(dir.path(), JOB).unwrap();
    let shared = held.secret().clone();
    let node = Credentials::of_cookie(JOB, held);
    assert_eq!(node.key_hasher(), Some(shared.key_hasher(JOB)));
    assert_ne!(node.key_hasher(), Some(hasher));
    // A client receives it from a node.
    assert_eq!(Credentials::of_client(JOB, None).key_hasher(), None);
}
