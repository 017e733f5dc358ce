"""The support of each feature gate in this agent.

Every gate is in exactly one of the groups; `tests/unit/config/test_support.py` holds them against
the table of gates and against the code that asks for one. Who begins to ask for a gate moves it to
ACTED_ON; who adds a feature without asking for its gate moves that to AS_IF_ON.
"""

from collections.abc import Mapping

from trio_kubelet.config.gates import default_of, resolve


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ACTED_ON = _names(
    """
    ClusterTrustBundleProjection ComponentFlagz ComponentStatusz ContainerCheckpoint
    ContainerStopSignals EventedPLEG ExecProbeTimeout
    KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages KubeletFineGrainedAuthz
    LoggingAlphaOptions MemoryQoS NodeDeclaredFeatures NodeLogQuery NodeSwap
    PodLogsQuerySplitStreams
    ReduceDefaultCrashLoopBackOffDecay RestartAllContainersOnContainerExits
    TaintTolerationComparisonOperators UserNamespacesHostNetworkSupport
    """
)
"""Gates that the agent asks for, or that decide about what the configuration may say."""

AS_IF_ON = _names(
    """
    AllowParsingUserUIDFromCertAuth ClientsAllowCARotation ContainerRestartRules
    CustomCPUCFSQuotaPeriod DisableNodeKubeProxyVersion EnvFiles HostnameOverride
    KubeletCgroupDriverFromCRI KubeletPSI KubeletRegistrationGetOnExistsOnly LoggingBetaOptions
    PLEGOnDemandRelist PodLevelResources PodLifecycleSleepAction
    PodLifecycleSleepActionAllowZero PodObservedGenerationTracking
    PodReadyToStartContainersCondition PreventStaticPodAPIReferences ProcMountType
    RecursiveReadOnlyMounts
    RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation
    ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile SidecarContainers
    SupplementalGroupsPolicy SystemdWatchdog UserNamespacesSupport WatchListClient
    """
)
"""Gates of features that the agent always has."""

AS_IF_OFF: Mapping[str, frozenset[str]] = {
    capability: _names(names)
    for capability, names in {
        "server": """
            ExtendWebSocketsToKubelet NativeHistograms PodAndContainerStatsFromCRI PodsAPI
            RotateKubeletServerCertificate
        """,
        "credential providers": "KubeletServiceAccountTokenForCredentialProviders",
        "garbage collection of images": "ImageMaximumGCAge",
        "images": "ImageVolume ImageVolumeWithDigest RuntimeClassInImageCriApi",
        "eviction": """
            AllowOverwriteTerminationGracePeriodSeconds KubeletSeparateDiskGC
            LocalStorageCapacityIsolationFSQuotaMonitoring
        """,
        "resource managers": """
            CPUManagerPolicyAlphaOptions CPUManagerPolicyBetaOptions CPUManagerPolicyOptions
            DisableCPUQuotaWithExclusiveCPUs PodLevelResourceManagers QOSReserved
            TopologyManagerPolicyAlphaOptions TopologyManagerPolicyBetaOptions
            TopologyManagerPolicyOptions
        """,
        "devices": """
            DRAConsumableCapacity DRAExtendedResource DRANodeAllocatableResources
            DRAWorkloadResourceClaims DynamicResourceAllocation
            KubeletPodResourcesDynamicResources KubeletPodResourcesGet
            KubeletPodResourcesListUseActivePods ResourceHealthStatus ResourceHealthStatusMessage
        """,
        "resize in place": """
            InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScaling
            InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
            InPlacePodVerticalScalingInitContainers
        """,
        "graceful shutdown of the node": """
            GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority
        """,
        "an agent without root": "KubeletInUserNamespace",
        "volume plugins": """
            CSIServiceAccountTokenSecrets CSIVolumeHealth GitRepoVolumeDriver
            MutableCSINodeAllocatableCount PodCertificateRequest RecoverVolumeExpansionFailure
            SELinuxChangePolicy SELinuxMount SELinuxMountReadWriteOncePod
        """,
        "tracing": "KubeletTracing",
        "CBOR between nodes and API server": "ClientsAllowCBOR ClientsPreferCBOR",
        "lists of the runtime as streams": "CRIListStreaming",
        "statuses of before a restart are dropped": "ChangeContainerStatusOnKubeletRestart",
    }.items()
}
"""Gates of features that the agent never has, by the capability that they belong to."""

WITHOUT_EFFECT_HERE = _names(
    """
    AtomicFIFO ClientsAllowTLSCacheGC ContextualLogging InOrderInformers
    InOrderInformersBatchProcess InformerResourceVersion UnlockWhileProcessingFIFO
    """
)
"""Gates that choose between ways of the libraries in Go that lead to the same."""

OF_OTHERS = _names(
    """
    APIResponseCompression APIServerIdentity APIServerTracing APIServingWithRoutine
    AggregatedDiscoveryRemoveBetaType AllowDNSOnlyNodeCSR
    AllowInsecureKubeletCertificateSigningRequests AllowServiceExternalIPs
    AllowUnsafeMalformedObjectDeletion AnonymousAuthConfigurableEndpoints AnyVolumeDataSource
    AuthorizeNodeWithSelectors AuthorizePodWebsocketUpgradeCreatePermission
    AuthorizeWithSelectors BtreeWatchCache CBORServingAndStorage CRDObservedGenerationTracking
    CRDValidationRatcheting ClearingNominatedNodeNameAfterBinding
    CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook
    ClusterTrustBundle ConcurrentWatchObjectDecode ConsistentListFromCache
    ConstrainedImpersonation ControllerManagerReleaseLeaderElectionLockOnExit
    CoordinatedLeaderElection CrossNamespaceVolumeDataSource CustomResourceFieldSelectors
    DRAAdminAccess DRADeviceBindingConditions DRADeviceTaintRules DRADeviceTaints
    DRAListTypeAttributes DRAPartitionableDevices DRAPrioritizedList
    DRAResourceClaimDeviceStatus DRAResourceClaimGranularStatusAuthorization
    DRAResourcePoolStatus DRASchedulerFilterTimeout DeclarativeValidation
    DeclarativeValidationBeta DeclarativeValidationTakeover
    DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency DisableAllocatorDualWrite
    ExternalServiceAccountTokenSigner GangScheduling GenericWorkload HPAConfigurableTolerance
    HPAScaleToZero JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy
    JobSuccessPolicy KMSv1 ListFromCacheSnapshot LogarithmicScaleDown
    ManifestBasedAdmissionControlConfig MatchLabelKeysInPodAffinity
    MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge
    MaxUnavailableStatefulSet MinimumKubeletVersion MultiCIDRServiceAllocator
    MutablePVNodeAffinity MutablePodResourcesForSuspendedJobs
    MutableSchedulingDirectivesForSuspendedJobs MutatingAdmissionPolicy NFTablesProxyMode
    NodeInclusionPolicyInPodTopologySpread NominatedNodeNameForExpectation OpenAPIEnums
    OpportunisticBatching OrderedNamespaceDeletion PersistentVolumeClaimUnusedSinceTime
    PodDeletionCost PodSchedulingReadiness PodTopologyLabelsAdmission PortForwardWebsockets
    PreferSameTrafficDistribution RelaxedServiceNameValidation RemoteRequestHeaderUID
    ResilientWatchCacheInitialization RetryGenerateName RouteExternalCertificate
    SchedulerAsyncAPICalls SchedulerAsyncPreemption SchedulerPopFromBackoffQ
    SchedulerQueueingHints SeparateCacheWatchRPC SeparateTaintEvictionController
    ServiceAccountNodeAudienceRestriction ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
    ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo
    ServiceCIDRStatusFieldWiping ShardedListAndWatch SizeBasedListCostEstimate
    StaleControllerConsistencyDaemonSet StaleControllerConsistencyJob
    StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
    StatefulSetSemanticRevisionComparison StorageCapacityScoring StorageNamespaceIndex
    StoragePerformantSecurityPolicy StorageVersionAPI StorageVersionHash StorageVersionMigrator
    StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf
    StrictIPCIDRValidation StructuredAuthenticationConfiguration
    StructuredAuthenticationConfigurationEgressSelector
    StructuredAuthenticationConfigurationJWKSMetrics TokenRequestServiceAccountUIDValidation
    TopologyAwareWorkloadScheduling TranslateStreamCloseWebsocketRequests
    UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy VolumeAttributesClass
    VolumeLimitScaling WatchCacheInitializationPostStartHook WatchList WinDSR WinOverlay
    WindowsCPUAndMemoryAffinity WindowsGracefulNodeShutdown WindowsHostNetwork
    WorkloadAwarePreemption WorkloadWithJob
    """
)
"""Gates of the control plane, of kube-proxy and of Windows: a cluster may share its gates."""

FIXED: Mapping[str, bool] = {
    **dict.fromkeys(sorted(AS_IF_ON), True),
    **{name: False for names in AS_IF_OFF.values() for name in sorted(names)},
}
"""The gates that the agent asks nobody for, and how it acts."""


def unheeded_gates(requested: Mapping[str, bool]) -> tuple[str, ...]:
    """The gates that were set to other than what the agent does; refused requests set nothing.

    A gate that AllAlpha or AllBeta set counts where that changed its default: otherwise each of
    them would name half of the table.
    """
    gates = resolve(requested).gates
    return tuple(
        name
        for name, done in FIXED.items()
        if gates[name] != done and requested.get(name, not default_of(name)) == gates[name]
    )
