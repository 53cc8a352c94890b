//! TLS 1.3 with raw public keys (RFC 7250): no certificates, no authorities, as with ssh.
//!
//! Arrives: this end's key, the server's key where it is known. Leaves: configurations of rustls, the secret of the UDP
//! packets. Must not know: users, sockets.
//!
//! A client trusts one key. A server lets any key prove itself and decides afterwards, so that it can explain a
//! refusal.

use std::sync::Arc;

use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{verify_tls13_signature_with_raw_key, CryptoProvider};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName,
    SignatureScheme,
};
use waystage_protocol::protect::Suite;

use crate::error::Error;
use crate::identity::{Identity, PublicKey};

pub use rustls::{Connection, ServerConfig};

/// The exporter's label (RFC 8446, section 7.5).
const LABEL: &[u8] = b"EXPORTER-waystage-wan-1";

/// The same, for the tags of a probe's packets.
const PROBE_LABEL: &[u8] = b"EXPORTER-waystage-probe-1";

/// What connections are for, by the protocol that the handshake agrees on: copies. A TLS server of another kind is
/// distinguished from ours.
pub const ALPN: &[u8] = b"waystage-wan/1";

/// The same: measurements of the path.
pub const PROBE_ALPN: &[u8] = b"waystage-probe/1";

/// The same: a stream of such a measurement.
pub const STREAM_ALPN: &[u8] = b"waystage-probe-stream/1";

fn provider() -> Arc<CryptoProvider> {
    let mut suites = vec![TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    if !has_aes() {
        suites.reverse();
    }
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites = suites;
    Arc::new(provider)
}

/// Whether the processor computes AES by itself.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// A client's configuration, and where the server's key is to be found after an attempt.
pub fn client(
    identity: &Identity,
    trusted: Option<PublicKey>,
    alpn: &[u8],
) -> Result<(Arc<ClientConfig>, Arc<OneKey>), Error> {
    let provider = provider();
    let verifier =
        Arc::new(OneKey { trusted, seen: Mutex::new(None), provider: Arc::clone(&provider) });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| unusable(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(
            &identity.certified,
        ))));
    config.alpn_protocols = vec![alpn.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok((Arc::new(config), verifier))
}

/// A server's configuration.
pub fn server(identity: &Identity) -> Result<Arc<ServerConfig>, Error> {
    let provider = provider();
    let verifier = Arc::new(AnyKey { provider: Arc::clone(&provider) });
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| unusable(&error))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(
            &identity.certified,
        ))));
    config.alpn_protocols = vec![ALPN.to_vec(), PROBE_ALPN.to_vec(), STREAM_ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn unusable(error: &rustls::Error) -> Error {
    Error::input(format!("this build's TLS cannot be used: {error}"))
}

/// The peer's key, once the handshake is done.
pub fn peer_key(connection: &Connection) -> Option<PublicKey> {
    PublicKey::of_spki(connection.peer_certificates()?.first()?)
}

/// What the handshake of a connection gives for its packets, before anything is said.
#[derive(Clone)]
pub struct PacketKeys {
    /// The secret of packet protection, known to the two ends only.
    pub secret: [u8; 32],
    /// The cipher suite of TLS, which packets use too.
    pub suite: Suite,
    /// By which packets to the client and to the server are marked.
    pub client_connection: u32,
    /// The connection id in packets to the server.
    pub server_connection: u32,
}

/// Secret, cipher and numbers of the connection's packets.
pub fn packet_keys(connection: &Connection) -> Option<PacketKeys> {
    let suite = match connection.negotiated_cipher_suite()?.suite() {
        CipherSuite::TLS13_AES_256_GCM_SHA384 => Suite::Aes256Gcm,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Suite::Chacha20Poly1305,
        _ => return None,
    };
    let made = match connection {
        Connection::Client(client) => client.export_keying_material([0; 40], LABEL, None),
        Connection::Server(server) => server.export_keying_material([0; 40], LABEL, None),
    };
    let made = made.ok()?;
    let (secret, numbers) = made.split_first_chunk()?;
    let (client, server) = numbers.split_first_chunk()?;
    Some(PacketKeys {
        secret: *secret,
        suite,
        client_connection: u32::from_be_bytes(*client),
        server_connection: u32::from_be_bytes(*server.first_chunk()?),
    })
}

/// The tags of a probe's packets, from the client and from the server.
pub fn probe_tags(connection: &Connection) -> Option<[u64; 2]> {
    let made = match connection {
        Connection::Client(client) => client.export_keying_material([0; 16], PROBE_LABEL, None),
        Connection::Server(server) => server.export_keying_material([0; 16], PROBE_LABEL, None),
    };
    let made = u128::from_be_bytes(made.ok()?);
    Some([(made >> 64) as u64, made as u64])
}

/// What both ends' verifiers have in common: signatures of TLS 1.3 with raw Ed25519 keys.
macro_rules! raw_key_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(rustls::Error::General("only TLS 1.3 is spoken".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature_with_raw_key(message, &key, dss, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

/// Believes the one key that is known.
#[derive(Debug)]
pub struct OneKey {
    trusted: Option<PublicKey>,
    seen: Mutex<Option<PublicKey>>,
    provider: Arc<CryptoProvider>,
}

impl OneKey {
    /// The key that the server showed.
    pub fn seen(&self) -> Option<PublicKey> {
        self.seen.lock().clone()
    }
}

impl ServerCertVerifier for OneKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let key = PublicKey::of_spki(end_entity);
        *self.seen.lock() = key.clone();
        if key.is_some() && key == self.trusted {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    raw_key_signatures!();
}

/// Lets any key prove that its owner is there; what it may do is decided later.
#[derive(Debug)]
struct AnyKey {
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        match PublicKey::of_spki(end_entity) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(rustls::Error::InvalidCertificate(CertificateError::BadEncoding)),
        }
    }

    raw_key_signatures!();
}

/// What others must not guess.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the system has random numbers");
    bytes
}
