"""Every feature gate of Kubernetes 1.36: stage, default, what it is to this agent, what holds.

The names are those that a 1.36 kubelet accepts, also the many that concern other components: one
`featureGates` section is often shared by a whole cluster. `resolve` turns the requested values
(file and flags, merged) into `FeatureGates`, the value that the agent asks:
`gates["EventedPLEG"]`. As in Kubernetes an unknown gate is an error, as is switching a
locked one; a GA or deprecated gate is accepted with a warning, because it will be unknown one
day. `AllAlpha` and `AllBeta` set every gate of their stage that is not named itself.
"""

from collections.abc import Iterator, Mapping
from enum import Enum, StrEnum, auto

from attrs import evolve, field, frozen


class Stage(StrEnum):
    """Stages of a feature."""

    ALPHA = "ALPHA"
    BETA = "BETA"
    GA = "GA"
    DEPRECATED = "DEPRECATED"


class Use(Enum):
    """The use that the agent makes of a gate."""

    ASKED = auto()
    """The agent asks for it, or it decides what the configuration may say."""
    AS_IF_ON = auto()
    AS_IF_OFF = auto()
    NONE = auto()
    """A gate of the control plane, of kube-proxy, of Windows or of the libraries in Go."""


@frozen
class FeatureGate:
    """One feature gate: its stage, its default, and its use in this agent."""

    stage: Stage
    default: bool
    """The Go kubelet's."""
    locked: bool = False
    """True if the default cannot be changed."""
    use: Use = Use.ASKED
    reason: str = ""
    """Why the agent will not do otherwise, of a gate that is as if off."""
    own_default: bool | None = None
    """This agent's default, where it is not the Go kubelet's."""

    @property
    def acts_as(self) -> bool | None:
        """The value that the agent acts by whatever the gate is set to; None if there is none."""
        return {Use.AS_IF_ON: True, Use.AS_IF_OFF: False}.get(self.use)


NO_CBOR = "the agent and the API server speak JSON; CBOR is off in API servers, too"
LABELS_OF_FILES = (
    "the runtime labels the files of a volume one by one, as `Recursive` says, which is right on "
    "every file system that takes labels; a mount with one label for all would only be faster"
)
EXCLUSIVE_STAYS = (
    "what a container has for itself it keeps for life: its resize is `Infeasible`, as by default; "
    "the files that both kubelets read (`cpu_manager_state`, `memory_manager_state`) have no place "
    "for what it had before"
)

ALPHA = FeatureGate(Stage.ALPHA, default=False)
BETA = FeatureGate(Stage.BETA, default=True)
BETA_OFF = FeatureGate(Stage.BETA, default=False)
GA = FeatureGate(Stage.GA, default=True, locked=True)
# Those that became GA in the latest release, and a few that never were locked.
GA_UNLOCKED = FeatureGate(Stage.GA, default=True)
DEPRECATED = FeatureGate(Stage.DEPRECATED, default=True)
DEPRECATED_OFF = FeatureGate(Stage.DEPRECATED, default=False)


def always(gate: FeatureGate) -> FeatureGate:
    """The gate of a feature that the agent always has."""
    return evolve(gate, use=Use.AS_IF_ON)


def never(reason: str, gate: FeatureGate) -> FeatureGate:
    """The gate of a feature that the agent will not have."""
    return evolve(gate, use=Use.AS_IF_OFF, reason=reason)


def of_others(gate: FeatureGate, names: str) -> Mapping[str, FeatureGate]:
    """Gates that nothing in this agent depends on."""
    return dict.fromkeys(names.split(), evolve(gate, use=Use.NONE))


KNOWN_GATES: Mapping[str, FeatureGate] = {
    "AllowDNSOnlyNodeCSR": DEPRECATED_OFF,
    "AllowOverwriteTerminationGracePeriodSeconds": never(
        "no kubelet of this version does: the gate is locked", evolve(DEPRECATED_OFF, locked=True)
    ),
    "AllowParsingUserUIDFromCertAuth": always(BETA),
    "CPUManagerPolicyAlphaOptions": ALPHA,
    "CPUManagerPolicyBetaOptions": BETA,
    "CPUManagerPolicyOptions": always(GA),
    "CRIListStreaming": ALPHA,
    "CSIServiceAccountTokenSecrets": always(GA_UNLOCKED),
    "CSIVolumeHealth": never(
        "its metric goes with Kubernetes 1.37, which tells of the health of volumes in the status "
        "of the pod",
        ALPHA,
    ),
    "ChangeContainerStatusOnKubeletRestart": never(
        "what was ready and had started up stays so over a restart of the agent, which is no "
        "outage; the gate brings former behaviour back, and will go",
        DEPRECATED_OFF,
    ),
    "ClientsAllowCARotation": always(BETA),
    "ClientsAllowCBOR": never(NO_CBOR, ALPHA),
    "ClientsPreferCBOR": never(NO_CBOR, ALPHA),
    "ClusterTrustBundleProjection": BETA_OFF,
    "ComponentFlagz": BETA,
    "ComponentStatusz": BETA,
    "ContainerCheckpoint": BETA,
    "ContainerRestartRules": always(BETA),
    "ContainerStopSignals": ALPHA,
    "CustomCPUCFSQuotaPeriod": always(GA_UNLOCKED),
    "DRAConsumableCapacity": always(BETA),
    "DRAExtendedResource": always(BETA),
    "DRANodeAllocatableResources": never(
        "what the status of a pod says of it has another form in Kubernetes 1.37, and no scheduler "
        "fills it in by default",
        ALPHA,
    ),
    "DRAWorkloadResourceClaims": never(
        "such claims belong to groups of pods, which API servers and schedulers of this version "
        "have only behind gates that are off (`GenericWorkload`)",
        ALPHA,
    ),
    "DisableCPUQuotaWithExclusiveCPUs": DEPRECATED,
    "DisableNodeKubeProxyVersion": always(DEPRECATED),
    "DynamicResourceAllocation": always(GA),
    "EnvFiles": always(BETA),
    # The agent watches the runtime's events, falls back by itself where they are not to be
    # trusted, and goes on relisting: it needs no operator to opt in.
    "EventedPLEG": evolve(ALPHA, own_default=True),
    "ExecProbeTimeout": GA,
    "ExtendWebSocketsToKubelet": BETA,
    "GitRepoVolumeDriver": never(
        "`git` would run as root on what a pod's author chose; an init container can clone",
        DEPRECATED_OFF,
    ),
    "GracefulNodeShutdown": BETA,
    "GracefulNodeShutdownBasedOnPodPriority": BETA,
    "HostnameOverride": always(BETA),
    "ImageMaximumGCAge": GA,
    "ImageVolume": always(GA_UNLOCKED),
    "ImageVolumeWithDigest": ALPHA,
    "InPlacePodLevelResourcesVerticalScaling": BETA,
    "InPlacePodVerticalScaling": always(GA),
    "InPlacePodVerticalScalingExclusiveCPUs": never(EXCLUSIVE_STAYS, ALPHA),
    "InPlacePodVerticalScalingExclusiveMemory": never(EXCLUSIVE_STAYS, ALPHA),
    "InPlacePodVerticalScalingInitContainers": BETA,
    "KubeletCgroupDriverFromCRI": always(GA),
    "KubeletCrashLoopBackOffMax": BETA,
    "KubeletEnsureSecretPulledImages": BETA,
    "KubeletFineGrainedAuthz": GA_UNLOCKED,
    # What a host denies the agent's process is said in one line each, whatever the gate is set to.
    "KubeletInUserNamespace": always(ALPHA),
    "KubeletPSI": always(GA_UNLOCKED),
    "KubeletPodResourcesDynamicResources": GA_UNLOCKED,
    "KubeletPodResourcesGet": always(GA_UNLOCKED),
    "KubeletPodResourcesListUseActivePods": always(DEPRECATED),
    "KubeletRegistrationGetOnExistsOnly": always(DEPRECATED_OFF),
    "KubeletSeparateDiskGC": always(BETA),
    "KubeletServiceAccountTokenForCredentialProviders": BETA,
    "KubeletTracing": always(GA),
    "LocalStorageCapacityIsolationFSQuotaMonitoring": never(
        "the use of volumes is measured by walking them, on every file system, at times that "
        "follow from what a walk costs",
        BETA_OFF,
    ),
    "LoggingAlphaOptions": ALPHA,
    "LoggingBetaOptions": always(BETA),
    "MemoryQoS": ALPHA,
    "MutableCSINodeAllocatableCount": always(GA_UNLOCKED),
    "NativeHistograms": never(
        "only the protobuf form of metrics has them, and the agent writes text, which every "
        "scraper reads",
        ALPHA,
    ),
    "NodeDeclaredFeatures": BETA,
    "NodeLogQuery": GA_UNLOCKED,
    "NodeSwap": GA,
    "PLEGOnDemandRelist": always(BETA),
    "PodAndContainerStatsFromCRI": never(
        "the agent reads cgroups itself, for every runtime the same, and has no second collector "
        "beside the runtime that this could save",
        ALPHA,
    ),
    "PodCertificateRequest": never(
        "API servers of this version do not serve the requests unless they are told to; those of "
        "Kubernetes 1.37 do, in another version of the API",
        BETA_OFF,
    ),
    "PodLevelResourceManagers": ALPHA,
    "PodLevelResources": BETA,
    "PodLifecycleSleepAction": always(GA),
    "PodLifecycleSleepActionAllowZero": always(GA),
    "PodLogsQuerySplitStreams": ALPHA,
    "PodObservedGenerationTracking": always(GA),
    "PodReadyToStartContainersCondition": always(BETA),
    "PodsAPI": ALPHA,
    "PreventStaticPodAPIReferences": always(BETA),
    "ProcMountType": always(GA_UNLOCKED),
    "QOSReserved": ALPHA,
    "RecoverVolumeExpansionFailure": always(GA),
    "RecursiveReadOnlyMounts": always(GA),
    "ReduceDefaultCrashLoopBackOffDecay": ALPHA,
    "RelaxedDNSSearchValidation": always(GA),
    "RelaxedEnvironmentVariableValidation": always(GA),
    "ReloadKubeletClientCAFile": always(BETA),
    "ReloadKubeletServerCertificateFile": always(BETA),
    "ResourceHealthStatus": BETA,
    "ResourceHealthStatusMessage": BETA,
    "RestartAllContainersOnContainerExits": BETA,
    "RotateKubeletServerCertificate": BETA,
    "RuntimeClassInImageCriApi": ALPHA,
    "SELinuxChangePolicy": never(LABELS_OF_FILES, GA_UNLOCKED),
    "SELinuxMount": never(LABELS_OF_FILES, BETA_OFF),
    "SELinuxMountReadWriteOncePod": never(LABELS_OF_FILES, GA_UNLOCKED),
    "SidecarContainers": always(GA),
    "SupplementalGroupsPolicy": always(GA),
    "SystemdWatchdog": always(GA),
    "TaintTolerationComparisonOperators": ALPHA,
    # No option of the topology manager is of these stages.
    "TopologyManagerPolicyAlphaOptions": evolve(ALPHA, use=Use.NONE),
    "TopologyManagerPolicyBetaOptions": evolve(BETA, use=Use.NONE),
    "TopologyManagerPolicyOptions": GA_UNLOCKED,
    "UserNamespacesHostNetworkSupport": ALPHA,
    "UserNamespacesSupport": always(GA_UNLOCKED),
    "WatchListClient": always(BETA),
    **of_others(
        BETA,
        """
        APIResponseCompression APIServerIdentity AtomicFIFO
        AuthorizePodWebsocketUpgradeCreatePermission CRDObservedGenerationTracking
        ClearingNominatedNodeNameAfterBinding ClientsAllowTLSCacheGC
        ConstrainedImpersonation ContextualLogging DRADeviceBindingConditions
        DRADeviceTaints DRAPartitionableDevices DRAResourceClaimDeviceStatus
        DRAResourceClaimGranularStatusAuthorization DRASchedulerFilterTimeout
        DeclarativeValidationBeta DeploymentReplicaSetTerminatingReplicas
        DetectCacheInconsistency HPAConfigurableTolerance InOrderInformersBatchProcess
        ListFromCacheSnapshot MatchLabelKeysInPodTopologySpread
        MatchLabelKeysInPodTopologySpreadSelectorMerge
        MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs
        NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching
        PodDeletionCost PodTopologyLabelsAdmission PortForwardWebsockets
        RelaxedServiceNameValidation RemoteRequestHeaderUID SchedulerAsyncPreemption
        SchedulerPopFromBackoffQ ServiceAccountNodeAudienceRestriction
        SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet
        StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet
        StaleControllerConsistencyStatefulSet StatefulSetSemanticRevisionComparison
        StorageVersionHash StrictIPCIDRValidation
        StructuredAuthenticationConfigurationEgressSelector
        StructuredAuthenticationConfigurationJWKSMetrics
        TokenRequestServiceAccountUIDValidation TranslateStreamCloseWebsocketRequests
        UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy
        UnlockWhileProcessingFIFO WatchCacheInitializationPostStartHook WatchList
        WindowsGracefulNodeShutdown
        """,
    ),
    **of_others(
        GA,
        """
        APIServerTracing AnonymousAuthConfigurableEndpoints AnyVolumeDataSource
        AuthorizeNodeWithSelectors AuthorizeWithSelectors BtreeWatchCache
        CRDValidationRatcheting ConsistentListFromCache CustomResourceFieldSelectors
        DisableAllocatorDualWrite JobBackoffLimitPerIndex JobManagedBy
        JobPodReplacementPolicy JobSuccessPolicy LogarithmicScaleDown
        MatchLabelKeysInPodAffinity MultiCIDRServiceAllocator NFTablesProxyMode
        NodeInclusionPolicyInPodTopologySpread OrderedNamespaceDeletion
        PodSchedulingReadiness PreferSameTrafficDistribution
        ResilientWatchCacheInitialization RetryGenerateName SchedulerQueueingHints
        SeparateTaintEvictionController ServiceAccountTokenJTI
        ServiceAccountTokenNodeBinding ServiceAccountTokenNodeBindingValidation
        ServiceAccountTokenPodNodeInfo StreamingCollectionEncodingToJSON
        StreamingCollectionEncodingToProtobuf StructuredAuthenticationConfiguration
        VolumeAttributesClass WinDSR WinOverlay
        """,
    ),
    **of_others(
        ALPHA,
        """
        APIServingWithRoutine AllowUnsafeMalformedObjectDeletion CBORServingAndStorage
        CloudControllerManagerWatchBasedRoutesReconciliation
        CloudControllerManagerWebhook ControllerManagerReleaseLeaderElectionLockOnExit
        CrossNamespaceVolumeDataSource DRAListTypeAttributes DRAResourcePoolStatus
        GangScheduling GenericWorkload HPAScaleToZero
        ManifestBasedAdmissionControlConfig MinimumKubeletVersion MutablePVNodeAffinity
        PersistentVolumeClaimUnusedSinceTime RouteExternalCertificate
        ShardedListAndWatch StorageCapacityScoring StoragePerformantSecurityPolicy
        StorageVersionAPI TopologyAwareWorkloadScheduling VolumeLimitScaling
        WindowsCPUAndMemoryAffinity WorkloadAwarePreemption WorkloadWithJob
        """,
    ),
    **of_others(evolve(DEPRECATED, locked=True), "AggregatedDiscoveryRemoveBetaType"),
    **of_others(
        DEPRECATED_OFF,
        """
        AllowInsecureKubeletCertificateSigningRequests
        DeclarativeValidationTakeover KMSv1 SeparateCacheWatchRPC WindowsHostNetwork
        """,
    ),
    **of_others(
        GA_UNLOCKED,
        """
        AllowServiceExternalIPs DRAAdminAccess DRAPrioritizedList DeclarativeValidation
        ExternalServiceAccountTokenSigner InOrderInformers InformerResourceVersion
        MutatingAdmissionPolicy
        """,
    ),
    **of_others(
        BETA_OFF,
        """
        ClusterTrustBundle ConcurrentWatchObjectDecode CoordinatedLeaderElection
        DRADeviceTaintRules MaxUnavailableStatefulSet SchedulerAsyncAPICalls
        StorageVersionMigrator
        """,
    ),
    **of_others(DEPRECATED, "ServiceCIDRStatusFieldWiping StorageNamespaceIndex"),
}
"""Every gate by its name, without the two collective ones."""

COLLECTIVE_GATES: Mapping[str, Stage] = {"AllAlpha": Stage.ALPHA, "AllBeta": Stage.BETA}

DEPENDENCIES: Mapping[str, tuple[str, ...]] = {
    "ClusterTrustBundleProjection": ("ClusterTrustBundle",),
    "DRADeviceBindingConditions": ("DRAResourceClaimDeviceStatus",),
    "DRADeviceTaintRules": ("DRADeviceTaints",),
    "DeclarativeValidationTakeover": ("DeclarativeValidation",),
    "GangScheduling": ("GenericWorkload",),
    "GracefulNodeShutdownBasedOnPodPriority": ("GracefulNodeShutdown",),
    "ImageVolumeWithDigest": ("ImageVolume",),
    "InPlacePodLevelResourcesVerticalScaling": ("PodLevelResources", "NodeDeclaredFeatures"),
    "MatchLabelKeysInPodTopologySpreadSelectorMerge": ("MatchLabelKeysInPodTopologySpread",),
    "PodLevelResourceManagers": ("PodLevelResources",),
    "ProcMountType": ("UserNamespacesSupport",),
    "RestartAllContainersOnContainerExits": ("ContainerRestartRules", "NodeDeclaredFeatures"),
    "StorageVersionAPI": ("APIServerIdentity",),
    "UnknownVersionInteroperabilityProxy": ("APIServerIdentity",),
    "UserNamespacesHostNetworkSupport": ("UserNamespacesSupport",),
    "WindowsGracefulNodeShutdown": ("GracefulNodeShutdown",),
}
"""A gate may be on only while those it needs are on; locked gates are left out."""


@frozen
class FeatureGates(Mapping[str, bool]):
    """The value of each known gate; as a mapping it has all of them, the collective ones too."""

    _values: Mapping[str, bool] = field(factory=lambda: _effective({}))

    def __getitem__(self, name: str) -> bool:
        """True if the feature is on. An unknown name is a bug of the caller: KeyError."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@frozen
class Resolution:
    """The gates that hold, and what is to be said about the request."""

    gates: FeatureGates
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def resolve(requested: Mapping[str, bool]) -> Resolution:
    """The gates that follow from the `requested` ones; refused ones keep their default."""
    problems = tuple(filter(None, (_problem(*item) for item in sorted(requested.items()))))
    accepted = {name: value for name, value in requested.items() if not _problem(name, value)}
    gates = FeatureGates(_effective(accepted))
    return Resolution(
        gates,
        problems + _unmet_dependencies(gates),
        tuple(filter(None, (_warning(*item) for item in sorted(accepted.items())))),
    )


def default_of(name: str) -> bool:
    """The value of a known gate that nobody set. KeyError for an unknown one."""
    if name in COLLECTIVE_GATES:
        return False
    gate = KNOWN_GATES[name]
    return gate.default if gate.own_default is None else gate.own_default


def unheeded_gates(requested: Mapping[str, bool]) -> tuple[str, ...]:
    """The gates that were set to other than what the agent does; refused requests set nothing.

    A gate that AllAlpha or AllBeta set counts where that changed its default: otherwise each of
    them would name half of the table.
    """
    gates = resolve(requested).gates
    return tuple(
        name
        for name, gate in KNOWN_GATES.items()
        if gate.acts_as is not None
        and gates[name] != gate.acts_as
        and requested.get(name, not default_of(name)) == gates[name]
    )


def _effective(accepted: Mapping[str, bool]) -> dict[str, bool]:
    values = {name: default_of(name) for name in (*COLLECTIVE_GATES, *KNOWN_GATES)}
    for collective, stage in COLLECTIVE_GATES.items():
        if collective in accepted:
            members = (name for name, gate in KNOWN_GATES.items() if gate.stage is stage)
            values.update(dict.fromkeys(members, accepted[collective]))
    values.update(accepted)
    return values


def _problem(name: str, value: bool) -> str:
    if name in COLLECTIVE_GATES:
        return ""
    gate = KNOWN_GATES.get(name)
    if gate is None:
        return f"unrecognized feature gate: {name}"
    if gate.locked and value != gate.default:
        return (
            f"cannot set feature gate {name} to {_go(value)}, "
            f"feature is locked to {_go(gate.default)}"
        )
    return ""


def _warning(name: str, value: bool) -> str:
    gate = KNOWN_GATES.get(name)
    if gate is None or gate.stage not in (Stage.GA, Stage.DEPRECATED):
        return ""
    stage = "GA" if gate.stage is Stage.GA else "deprecated"
    return (
        f"Setting {stage} feature gate {name}={_go(value)}. It will be removed in a future release."
    )


def _unmet_dependencies(gates: FeatureGates) -> tuple[str, ...]:
    return tuple(
        f"{name} is enabled, but depends on features that are disabled: [{' '.join(missing)}]"
        for name, needed in DEPENDENCIES.items()
        if gates[name] and (missing := [other for other in needed if not gates[other]])
    )


def _go(value: bool) -> str:
    return "true" if value else "false"
